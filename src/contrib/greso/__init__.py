"""GRESO (arXiv 2506.02177): questions without gradient are skipped by their history."""
