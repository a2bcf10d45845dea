"""Skywork-OR1 (arXiv 2505.22312): an entropy bonus whose coefficient adapts to the policy's entropy."""
