"""Unlikeliness reward (arXiv 2506.02355): likely correct responses earn less."""
