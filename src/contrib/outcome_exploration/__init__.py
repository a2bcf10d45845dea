"""Outcome-based exploration (arXiv 2509.06941): bonuses for rare answers."""
