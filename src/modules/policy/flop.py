"""Useful arithmetic of an update."""

from __future__ import annotations

from transformers import PretrainedConfig

from ...packing.batch import PackedBatch
from ...packing.policy import CausalPolicy
from .sharding import decoder_layers


class UsefulFlop:
    """Counts what a forward and a backward must multiply at least, with each distinct token encoded once.

    Per token two FLOP for each weight of the decoder layers forward, two for the gradient of its input, and two for
    that of the weight where it is trained; the same of the output head for each response token; and attention, of which
    only what a token may see counts. Layers that are computed again, forwards without gradient, embeddings and
    elementwise work are not in it. Of mixtures of experts all weights count, those that a token leaves out too.
    """

    def __init__(self, policy: CausalPolicy) -> None:
        layers, config = decoder_layers(policy), policy.model.config
        weights = [weight for layer in layers for weight in layer.parameters() if weight.dim() > 1]
        head = policy.model.get_output_embeddings().weight
        self.per_token: int = sum((6 if weight.requires_grad else 4) * weight.numel() for weight in weights)
        self.per_target: int = (6 if head.requires_grad else 4) * head.numel()
        self.per_pair: int = 12 * len(layers) * config.num_attention_heads * head_dim(config)

    def of(self, packed: PackedBatch) -> float:
        """FLOP of one micro-batch."""
        prompts = {span.prompt: span.prompt_length for span in packed.spans}.values()
        pairs = sum(length * (length + 1) / 2 for length in prompts)
        pairs += sum(s.length * (s.prompt_length + (s.length + 1) / 2) for s in packed.spans)
        tokens, targets = packed.input_ids.shape[1], len(packed.targets)
        return self.per_token * tokens + self.per_target * targets + self.per_pair * pairs


def head_dim(config: PretrainedConfig) -> int:
    """Width of one attention head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
