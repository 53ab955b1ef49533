"""Layers of the backbones, and checks of their config values."""
