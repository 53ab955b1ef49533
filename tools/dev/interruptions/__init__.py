"""The parts of tools/dev/chaos.py: small runs, the moments of kills, scenarios and comparisons."""
