"""PKPO (arXiv 2505.15201): the unbiased gradient of pass@k."""
