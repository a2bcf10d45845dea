"""Run directories, checkpoints, atomic file writes, locks, loggers, removal of secrets, and grids of runs."""
