"""Removable: `tagrpo-plan`, a forecast of memory and time from the settings."""
