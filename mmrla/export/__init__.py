"""Detectors as files for other runtimes; importing a module of it imports mmdet."""
