"""Shell: runs on disk, with directories, checkpoints, loggers, protection of secrets, and grids of runs."""
