"""The study for GPU nodes."""
