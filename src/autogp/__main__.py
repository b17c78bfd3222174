"""`python -m autogp`: the command line."""

from autogp.cli import app

app(prog_name="autogp")
