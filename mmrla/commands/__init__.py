"""The subcommands of ``mmrla``, one module for each.

The scripts in ``tools/`` run the same modules under mmdet's names.
"""
from typing import Dict

# Name of each subcommand, and what it does. The module of a subcommand has its name with
# underscores instead of hyphens, a function build_parser and a function main.
COMMANDS: Dict[str, str] = {
    'init': 'look at a folder of images and write a config for it',
    'train': 'train a detector or a classifier',
    'test': 'evaluate a checkpoint',
    'predict': 'detect objects in images, folders and videos',
    'export': 'write a detector as an ONNX file',
    'report': 'make one HTML page about one or several runs',
    'doctor': 'check the installation, and say how to fix it',
    'check-dataset': 'look for errors in a data set',
    'convert-weights': 'convert a checkpoint to another layout',
    'look-inside': 'draw the hidden state along the depth of a network',
    'benchmark': 'compare the cost of models',
    'summarize-run': 'draw the curves of a run as a picture',
    'compare-seeds': 'compare runs that differ in their seed',
    'make-shapes': 'draw the embedded data set',
    'paper-tables': 'print the tables of the paper beside our own counts',
    'plot-shared-weights': 'draw figure 2 of the paper',
}

