"""Data sets and their checks; importing this package registers the data sets."""
from .folders import CheckLabelsHook, ClassFolders, LoadNamedImage, SkippedImagesHook
from .shapes import CLASSES, make_class_folders, make_shapes

__all__ = ['CLASSES', 'CheckLabelsHook', 'ClassFolders', 'LoadNamedImage', 'SkippedImagesHook',
           'make_class_folders', 'make_shapes']
