"""Entropy-shaped advantages (arXiv 2506.14758): uncertain tokens count a little more."""
