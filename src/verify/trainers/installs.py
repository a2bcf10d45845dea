"""Shell lines that make an environment of each trainer."""

INSTALL: dict[str, str] = {}
"""Trainer → shell line."""
