"""Removable: `tagrpo-compare`, which trains many runs, and `tagrpo-eval`, which evaluates a policy."""
