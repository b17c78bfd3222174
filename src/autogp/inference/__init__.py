"""Training: the loop, its phases and its checkpoints."""
