"""Data that needs no download."""
from .shapes import CLASSES, make_shapes

__all__ = ['CLASSES', 'make_shapes']
