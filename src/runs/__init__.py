"""Shell: a run on disk: its directory, checkpoints, loggers, secrets that stay out, grids of runs."""
