"""The causal language model behind a policy: log-probs in micro-batches, LoRA, compiled and sharded layers."""
