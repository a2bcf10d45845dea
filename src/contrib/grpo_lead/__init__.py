"""GRPO-LEAD (arXiv 2504.09696): rewards that depend on length, and advantages weighted by difficulty."""
