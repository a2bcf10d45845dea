"""Core: the policy and its update from rollouts, with advantages, log-probs, loss and optimizer steps."""
