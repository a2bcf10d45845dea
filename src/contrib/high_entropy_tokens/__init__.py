"""80/20 (arXiv 2506.01939): policy gradient at the tokens of highest entropy alone."""
