"""ExGRPO (arXiv 2510.02245): past successes are replayed together with new responses."""
