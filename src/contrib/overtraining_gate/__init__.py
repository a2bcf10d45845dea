"""Overtraining gate (after arXiv 2606.15455): questions weigh by what they can still add to pass@k."""
