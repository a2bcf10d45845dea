"""A run on disk: its directory, checkpoints, whole files, locks, loggers, grids of runs."""
