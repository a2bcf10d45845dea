"""Clip-Cov and KL-Cov (arXiv 2505.22617): tokens whose advantage and log-prob vary together move less."""
