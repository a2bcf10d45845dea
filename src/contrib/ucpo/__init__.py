"""UCPO (arXiv 2605.00365): more reinforcement of correct responses that the policy finds unlikely."""
