"""Entropy-shaped advantages (arXiv 2506.14758): larger advantages at tokens where the policy is uncertain."""
