"""Useful FLOP of an update: the least that a forward and a backward need."""

from transformers import PretrainedConfig

from ...packing.batch import Work
from ...packing.policy import CausalPolicy
from .sharding import decoder_layers


class UsefulFlop:
    """Counter of the least FLOP that a forward and a backward need, with each distinct token encoded once.

    Each token costs, per weight of the decoder layers, two FLOP in the forward, two for the gradient of the
    input, and two for the gradient of the weight if it is trained; each state that predicts response tokens
    costs the same per weight of the output head. Attention counts only what a token may see. Recomputed
    layers, forwards without gradient, embeddings and elementwise work are left out. In mixtures of experts
    all weights count, also those that a token does not use.
    """

    def __init__(self, policy: CausalPolicy) -> None:
        layers = decoder_layers(policy)
        config = policy.model.config
        weights = [weight for layer in layers for weight in layer.parameters() if weight.dim() > 1]
        head = policy.model.get_output_embeddings().weight
        self.per_token: int = sum((6 if weight.requires_grad else 4) * weight.numel() for weight in weights)
        self.per_state: int = (6 if head.requires_grad else 4) * head.numel()
        attends = hasattr(config, "num_attention_heads")  # recurrent models do not
        self.per_pair: int = (
            12 * len(layers) * config.num_attention_heads * head_dim(config) if attends else 0
        )

    def of(self, work: Work) -> float:
        """Return the FLOP of a forward and a backward of this work."""
        return float(self.per_token * work.tokens + self.per_state * work.states + self.per_pair * work.pairs)


def head_dim(config: PretrainedConfig) -> int:
    """Return the width of one attention head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
