"""UCPO (arXiv 2605.00365): correct responses that the policy finds unlikely are reinforced more."""
