"""Folders of the repository."""
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
CONFIGS = REPO / 'configs'
