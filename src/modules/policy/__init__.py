"""The causal language model behind a policy: packed forwards, log-probs, LoRA, sharding."""
