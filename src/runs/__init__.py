"""A run on disk: its directory, checkpoints, whole files, locks, loggers, secrets that stay out, grids of runs."""
