"""Gaussian process models for any likelihood, at any scale."""
