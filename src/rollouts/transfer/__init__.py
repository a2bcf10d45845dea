"""Removable: weights from a trainer to vLLM servers: backends at both ends, check sums, and the servers' flags."""
