"""The causal language model of a policy: log-probs in micro-batches, LoRA, compiled and sharded layers."""
