"""Removable: other trainers' own code on the same batch of rollouts."""
