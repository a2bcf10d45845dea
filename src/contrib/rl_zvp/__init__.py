"""RL-ZVP (arXiv 2509.21880): credit in pools of equal rewards, by the entropy of their tokens."""
