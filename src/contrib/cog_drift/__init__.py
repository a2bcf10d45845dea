"""Cog-DRIFT (arXiv 2604.04767): a question is asked in its easiest format first."""
