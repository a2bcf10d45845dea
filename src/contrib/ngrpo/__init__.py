"""NGRPO (arXiv 2509.18851): a virtual success in every pool."""
