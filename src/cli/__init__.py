"""Console scripts and their output."""
