"""The policy and its update from rollouts: advantages, log-probs, loss and optimizer step."""
