"""80/20 (arXiv 2506.01939): policy gradient only at the tokens with the highest entropy."""
