"""Core: the policy, and what turns rollouts into an update of it: advantages, log-probs, loss, step."""
