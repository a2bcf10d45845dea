"""Removable: backends of vLLM's weight transfer, at both ends, and check sums of what has arrived."""
