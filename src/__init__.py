"""tagrpo: reinforcement learning with verifiable rewards, and how it explores."""
