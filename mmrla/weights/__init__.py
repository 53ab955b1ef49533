"""Weights: reading and writing files, layouts, and fitting them into models."""
