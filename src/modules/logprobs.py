"""Token log-probs and entropies of packed responses under any Hugging Face causal language model.

Prefix-shared where the model allows it (`PREFIX_SHARING`); elsewhere one padded forward, slower and with the same
result. On the prefix-shared path logits exist for response tokens only, in chunks that the backward recomputes: no
[tokens, vocabulary] tensor is ever kept.
"""

from __future__ import annotations

import logging
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, PreTrainedModel

from .packing import PackedBatch

logger = logging.getLogger(__name__)

PREFIX_SHARING = frozenset({"llama", "qwen2", "qwen3"})
"""Model types whose attention is plain causal softmax attention and hands its keyword arguments on."""

EntropyMode = Literal["none", "detached", "grad"]


class TokenScores(NamedTuple):
    """What a forward says about T response tokens."""

    logprobs: Tensor
    """[T] float32, log π(token | prompt, tokens before), nats."""
    entropy: Tensor | None
    """[T] float32, entropy of the distribution that the token was drawn from, nats."""


class CausalPolicy(nn.Module):
    """A causal language model that scores packed responses. The root of FSDP2 sharding.

    Args:
        model: Any causal language model of transformers.
        temperature: Log-probs and entropies are those of softmax(logits / temperature).
        chunk_size: Response tokens whose logits exist at one time, prefix-shared path only.
    """

    def __init__(self, model: PreTrainedModel, temperature: float = 1.0, chunk_size: int = 1024) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.chunk_size = chunk_size
        self.shares_prefix = supports_prefix_sharing(model)
        if self.shares_prefix:
            model.set_attn_implementation(PREFIX_ATTENTION)
        else:
            logger.info("%s is scored in padded batches: its prompts can't be shared.", type(model).__name__)

    def forward(self, batch: PackedBatch, entropy: EntropyMode = "detached") -> TokenScores:
        """Score the response tokens of `batch`, which must be packed with `share_prefix=self.shares_prefix`.

        Args:
            batch: Packed responses.
            entropy: `none`; `detached` (without gradient); `grad`.
        """
        if self.shares_prefix:
            return self._scores(self._hidden(batch), batch.targets, entropy)
        return token_scores(self._padded_logits(batch), batch.targets, self.temperature, entropy)

    def _hidden(self, batch: PackedBatch) -> Tensor:
        """[T, hidden] of the tokens before each target, prompts encoded once."""
        outputs = self.model.base_model(
            input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False, packed=batch
        )
        return outputs.last_hidden_state[0].index_select(0, batch.predictors)

    def _scores(self, hidden: Tensor, targets: Tensor, entropy: EntropyMode) -> TokenScores:
        """Output head, log-softmax and selection, a chunk at a time."""

        def chunk_scores(hidden: Tensor, targets: Tensor) -> TokenScores:
            return token_scores(self.model.get_output_embeddings()(hidden), targets, self.temperature, entropy)

        chunks = zip(hidden.split(self.chunk_size), targets.split(self.chunk_size), strict=True)
        if torch.is_grad_enabled():
            scores = [checkpoint(chunk_scores, *chunk, use_reentrant=False) for chunk in chunks]
        else:
            scores = [chunk_scores(*chunk) for chunk in chunks]
        logprobs = torch.cat([score.logprobs for score in scores])
        return TokenScores(logprobs, None if entropy == "none" else torch.cat([s.entropy for s in scores]))

    def _padded_logits(self, batch: PackedBatch) -> Tensor:
        """[T, V] logits of the model's own forward on whole, right-padded sequences."""
        (block,) = batch.blocks
        mask = torch.zeros(block.queries.numel(), dtype=torch.long, device=block.queries.device)
        mask[batch.slots] = 1
        logits = self.model(
            input_ids=batch.input_ids[0][block.queries],
            attention_mask=mask.view_as(block.queries),
            use_cache=False,
        ).logits
        return logits.flatten(0, 1).index_select(0, batch.slots[batch.predictors])


def token_scores(logits: Tensor, targets: Tensor, temperature: float, entropy: EntropyMode) -> TokenScores:
    """Log-probs of `targets` [T] and entropies under softmax(logits [T, V] / temperature), in float32.

    >>> scores = token_scores(torch.zeros(1, 4), torch.tensor([2]), 1.0, "detached")
    >>> [round(float(x), 4) for x in (scores.logprobs, scores.entropy)]
    [-1.3863, 1.3863]
    """
    logprobs = F.log_softmax(logits.float() / temperature, dim=-1)
    selected = logprobs.gather(-1, targets[:, None])[:, 0]
    if entropy == "none":
        return TokenScores(selected, None)
    source = logprobs if entropy == "grad" else logprobs.detach()
    # A logit of −∞ has probability 0 and adds nothing: 0 · (−∞) must not become NaN.
    return TokenScores(selected, -(source.exp() * source.clamp(min=torch.finfo(source.dtype).min)).sum(-1))


def supports_prefix_sharing(model: PreTrainedModel) -> bool:
    """Whether responses can share their encoded prompt: a known model type without sliding windows."""
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    return config.model_type in PREFIX_SHARING and kinds == {"full_attention"}


PREFIX_ATTENTION = "tagrpo_prefix_shared"


def prefix_shared_attention(
    module: nn.Module,  # noqa: ARG001 (part of the interface)
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 (the blocks say who attends to whom)
    *,
    packed: PackedBatch,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention over packed tokens, block by block; an attention function of transformers.

    Args:
        module: The attention layer.
        query: [1, H, L, D].
        key: [1, H_kv, L, D]; H is a multiple of H_kv.
        value: [1, H_kv, L, D].
        attention_mask: Not used.
        packed: The batch, handed through the model's forward.
        scaling: Factor of the dot products; None means 1/√D.

    Returns:
        [1, L, H, D], and None for the attention weights.
    """
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    outputs = []
    for block in packed.blocks:
        (n, size), keys = block.queries.shape, block.keys.flatten()
        out = F.scaled_dot_product_attention(
            q.index_select(0, block.queries.flatten()).view(n, size, *q.shape[1:]).transpose(1, 2),
            k.index_select(0, keys).view(n, -1, *k.shape[1:]).transpose(1, 2),
            v.index_select(0, keys).view(n, -1, *v.shape[1:]).transpose(1, 2),
            attn_mask=block.mask,
            is_causal=block.mask is None,
            scale=scaling,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs).index_select(0, packed.slots)[None], None


AttentionInterface.register(PREFIX_ATTENTION, prefix_shared_attention)
