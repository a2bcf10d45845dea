"""Core: reinforcement learning with verifiable rewards, and how it explores."""
