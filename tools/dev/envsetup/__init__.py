"""The steps of tools/dev/environment.py. They use the standard library only."""
