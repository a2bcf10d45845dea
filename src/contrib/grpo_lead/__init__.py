"""GRPO-LEAD (arXiv 2504.09696): length and difficulty in the reward and its weights."""
