"""Command-line tools, one module per command.

Each module has ``build_parser()`` and ``main(argv=None)``; the scripts in
``tools/`` call ``main``.
"""
