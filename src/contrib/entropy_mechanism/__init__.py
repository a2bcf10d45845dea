"""Clip-Cov and KL-Cov (arXiv 2505.22617): restrain tokens whose advantage and log-prob covary most."""
