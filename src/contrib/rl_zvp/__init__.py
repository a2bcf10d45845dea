"""RL-ZVP (arXiv 2509.21880): credit in pools of equal rewards, from the entropy at each token."""
