"""The command-line tools, one module for each; ``tools/`` calls their ``main``."""
