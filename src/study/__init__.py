"""Removable: `tagrpo-compare` and `tagrpo-eval`, commands that train many runs and evaluate a trained policy."""
