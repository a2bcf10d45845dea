"""RL-ZVP (arXiv 2509.21880): pools of equal rewards are learned from by the entropy of their tokens."""
