"""Removable: `tagrpo-verify`, one batch of rollouts through other trainers' code and through ours."""
