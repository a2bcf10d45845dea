"""RS-GRPO (arXiv 2509.24261): a risk-seeking utility of the rewards."""
