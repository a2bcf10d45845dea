"""Token log-probs and entropies of packed responses under any Hugging Face causal language model.

Prefix-shared where the model allows it (`supports_prefix_sharing`); elsewhere one padded forward, slower and with
the same result. On the prefix-shared path logits exist for response tokens only, in chunks that the backward
recomputes: no [tokens, vocabulary] tensor is ever kept. On the padded path the model itself makes all logits.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from .attention import PREFIX_ATTENTION, supports_prefix_sharing
from .packing import PackedBatch

logger = logging.getLogger(__name__)

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
        model: Any causal language model of transformers, with or without adapters of peft.
        temperature: Log-probs and entropies are those of softmax(logits / temperature).
        chunk_size: Response tokens whose logits exist at one time, prefix-shared path only. None: 256 on a CPU, whose
            caches a larger chunk leaves, and 1024 elsewhere.
    """

    def __init__(self, model: PreTrainedModel, temperature: float = 1.0, chunk_size: int | None = None) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.chunk_size = chunk_size
        self.shares_prefix, reason = supports_prefix_sharing(model)
        if self.shares_prefix:
            model.set_attn_implementation(PREFIX_ATTENTION)
        else:
            logger.info("%s is scored in padded batches: %s.", type(model).__name__, reason)

    def forward(self, batch: PackedBatch, entropy: EntropyMode = "detached") -> TokenScores:
        """Score the response tokens of `batch`.

        Args:
            batch: Packed responses; with `share_prefix=False` unless this policy's `shares_prefix` is true.
            entropy: `none`; `detached` (without gradient); `grad`.
        """
        if not self.shares_prefix:
            return token_scores(self._padded_logits(batch), batch.targets, self.temperature, entropy)
        # Adapters of peft live inside the wrapped model's layers.
        unwrap: Any = getattr(self.model, "get_base_model", None)
        model = unwrap() if unwrap else self.model
        hidden = model.base_model(
            input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False, packed=batch
        ).last_hidden_state[0]
        head = model.get_output_embeddings()
        return head_scores(
            hidden.index_select(0, batch.predictors),
            head.weight,
            head.bias,
            batch.targets,
            self.temperature,
            entropy,
            self.chunk_size or (256 if hidden.device.type == "cpu" else 1024),
        )

    def _padded_logits(self, batch: PackedBatch) -> Tensor:
        """[T, V] logits of the model's own forward on whole, right-padded sequences."""
        column = batch.position_ids[0]
        row = (column == 0).cumsum(0) - 1
        ids = batch.input_ids.new_zeros(int(row[-1]) + 1, int(column.max()) + 1)
        mask = torch.zeros_like(ids)
        ids[row, column] = batch.input_ids[0]
        mask[row, column] = 1
        row, column = row[batch.predictors], column[batch.predictors]
        kept: dict[str, Tensor] = {}
        if "logits_to_keep" in inspect.signature(self.model.forward).parameters:
            # Columns in which every row is still in its prompt predict no response token.
            kept["logits_to_keep"] = torch.arange(int(column.min()), ids.shape[1], device=ids.device)
            column = column - column.min()
        logits = self.model(input_ids=ids, attention_mask=mask, use_cache=False, **kept).logits
        return logits[row, column]


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


def head_scores(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float = 1.0,
    entropy: EntropyMode = "detached",
    chunk_size: int = 1024,
) -> TokenScores:
    """`token_scores` of the logits hidden · weightᵀ + bias, of which `chunk_size` rows exist at one time.

    The backward computes them again: 8 instead of 6 FLOP per token and element of the head, for [T] numbers kept
    instead of [T, V]. Respects autocast. Logits must be finite.

    Args:
        hidden: [T, d].
        weight: [V, d], of the same type as `hidden` outside autocast.
        bias: [V] or None.
        targets: [T] long.
        temperature: Divides the logits.
        entropy: `none`; `detached` (without gradient); `grad`.
        chunk_size: Rows of logits at one time.

    >>> weight = torch.tensor([[0.0], [1.0]]).log1p()  # logits 0 and ln 2: probabilities 1/3 and 2/3
    >>> scores = head_scores(torch.ones(1, 1), weight, None, torch.tensor([1]))
    >>> [round(float(x), 4) for x in (scores.logprobs.exp(), scores.entropy)]
    [0.6667, 0.6365]
    """
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
        bias = bias if bias is None else bias.to(dtype)
    logprobs, entropies = _HeadScores.apply(hidden, weight, bias, targets, temperature, entropy, chunk_size)
    return TokenScores(logprobs, None if entropy == "none" else entropies)


class _HeadScores(torch.autograd.Function):
    """The chunked head. With z = ln Σ exp xᵥ and p = exp(x − z): ∂(log pₜ)/∂xᵥ = [v = t] − pᵥ and
    ∂H/∂xᵥ = −pᵥ (ln pᵥ + H). All buffers of [chunk, V] are reused from chunk to chunk.
    """  # noqa: D205

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        entropy: EntropyMode,
        chunk_size: int,
    ) -> tuple[Tensor, Tensor]:
        logits = _Logits(hidden, weight, bias, temperature, chunk_size)
        logprobs, normalisers, entropies = hidden.new_zeros(3, len(targets), dtype=torch.float32)
        scratch = None if entropy == "none" else torch.empty_like(logits.buffer)
        for rows in logits.chunks:
            x = logits(rows)
            top = x.amax(1)
            chosen = x.gather(1, targets[rows, None])[:, 0]
            x.sub_(top[:, None])
            if scratch is None:
                total = x.exp_().sum(1)
            else:
                p = torch.exp(x, out=scratch[: len(x)])
                total = p.sum(1)
                entropies[rows] = total.log() - torch.linalg.vecdot(p, x) / total
            normalisers[rows] = top + total.log()
            logprobs[rows] = chosen - normalisers[rows]
        ctx.save_for_backward(hidden, weight, bias, targets, normalisers, entropies)
        ctx.temperature, ctx.entropy, ctx.chunk_size = temperature, entropy, chunk_size
        if entropy != "grad":
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs: Tensor, grad_entropies: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, normalisers, entropies = ctx.saved_tensors
        logits = _Logits(hidden, weight, bias, ctx.temperature, ctx.chunk_size)
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        # Sums over chunks are taken in float32, whatever the type of the products.
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if ctx.needs_input_grad[2] else None
        scratch = torch.empty_like(logits.buffer) if ctx.entropy == "grad" else None
        for rows in logits.chunks:
            x = logits(rows).sub_(normalisers[rows, None])
            upstream = grad_logprobs[rows, None] / ctx.temperature
            if scratch is None:
                x.exp_().mul_(-upstream)
            else:
                p = torch.exp(x, out=scratch[: len(x)])
                x.add_(entropies[rows, None]).mul_(-grad_entropies[rows, None] / ctx.temperature)
                x.sub_(upstream).mul_(p)
            x.scatter_add_(1, targets[rows, None], upstream)
            product = x.to(weight.dtype)
            if grad_hidden is not None:
                torch.mm(product, weight, out=grad_hidden[rows])
            if grad_weight is not None and weight.dtype == torch.float32:
                grad_weight.addmm_(product.t(), hidden[rows])
            elif grad_weight is not None:
                grad_weight.add_(product.t() @ hidden[rows])
            if grad_bias is not None:
                grad_bias.add_(x.sum(0))
        grad_weight = grad_weight if grad_weight is None else grad_weight.to(weight.dtype)
        grad_bias = grad_bias if grad_bias is None else grad_bias.to(bias.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


class _Logits:
    """Float32 logits of a chunk of rows, in a buffer that the next chunk overwrites."""

    def __init__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, chunk_size: int
    ) -> None:
        self.hidden, self.weight, self.bias, self.temperature = hidden, weight, bias, temperature
        self.chunks = [slice(start, start + chunk_size) for start in range(0, len(hidden), chunk_size)]
        self.buffer = weight.new_empty(min(chunk_size, len(hidden)), len(weight), dtype=torch.float32)
        self.product = (
            self.buffer if weight.dtype == torch.float32 else torch.empty_like(self.buffer, dtype=weight.dtype)
        )

    def __call__(self, rows: slice) -> Tensor:
        hidden = self.hidden[rows]
        product = torch.mm(hidden, self.weight.t(), out=self.product[: len(hidden)])
        x = product if product.dtype == torch.float32 else self.buffer[: len(hidden)].copy_(product)
        if self.bias is not None:
            x.add_(self.bias)
        return x if self.temperature == 1 else x.div_(self.temperature)
