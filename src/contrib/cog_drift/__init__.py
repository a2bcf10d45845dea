"""Cog-DRIFT (arXiv 2604.04767): questions are sampled in their easiest format first."""
