"""SEED-GRPO (arXiv 2505.12346): smaller updates where the answers to a question disagree."""
