"""GRESO (arXiv 2506.02177): questions that had no gradient lately are often skipped."""
