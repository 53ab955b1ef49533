"""Data sets of other formats as COCO-format annotations."""
from .detect import FORMATS, find_dataset
from .splits import Dataset, Split, split_off, write_split

__all__ = ['FORMATS', 'Dataset', 'Split', 'find_dataset', 'split_off', 'write_split']
