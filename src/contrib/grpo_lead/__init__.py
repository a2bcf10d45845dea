"""GRPO-LEAD (arXiv 2504.09696): lengths, loops and difficulty in the reward and its weights."""
