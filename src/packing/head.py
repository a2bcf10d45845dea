"""The output head: log-probs, entropies and losses of tokens without ever keeping their logits.

Logits exist for one chunk of tokens at a time. A loss that is a sum over tokens is taken chunk by chunk together with
its gradient (`head_loss`); for any other use the backward makes the logits again (`head_scores`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .logits import EntropyMode, HeadConfig, make_head

TokenLoss = Callable[[slice, Tensor, Tensor | None], Tensor]
"""(tokens, their [t] log-probs, their [t] entropies) → [] loss of these tokens; the losses of all tokens add up."""


class TokenScores(NamedTuple):
    """Log-probs and entropies of T response tokens, from one forward."""

    logprobs: Tensor
    """[T] float32, log π(token | prompt, tokens before), nats."""
    entropy: Tensor | None
    """[T] float32, entropy of the distribution that the token was drawn from, nats."""
    loss: Tensor | None = None
    """[] float32 with gradient, where a loss was given; the scores then have none."""


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
    hidden, weight, bias = _as_autocast(hidden, weight, bias)
    config = HeadConfig(temperature, entropy, chunk_size)
    logprobs, entropies = _HeadScores.apply(hidden, weight, bias, targets, config)  # type: ignore[no-untyped-call]
    return TokenScores(logprobs, None if entropy == "none" else entropies)


def head_loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    loss: TokenLoss,
    temperature: float = 1.0,
    entropy: EntropyMode = "detached",
    chunk_size: int = 1024,
) -> TokenScores:
    """`head_scores` without gradient, and the sum of `loss` over the chunks with it.

    A chunk's gradient is taken while its logits exist: 6 FLOP per token and element of the head. As many numbers as
    `hidden`, `weight` and `bias` have are kept for the backward, which runs once.

    The arguments are those of `head_scores`; `loss` is called with one chunk after the other.

    >>> weight = torch.tensor([[0.0], [1.0]]).log1p().requires_grad_()  # probabilities 1/3 and 2/3
    >>> scores = head_loss(torch.ones(1, 1), weight, None, torch.tensor([1]), lambda rows, logprobs, _: -logprobs.sum())
    >>> scores.loss.backward()
    >>> [round(float(x), 4) for x in (scores.loss.exp(), *weight.grad)]
    [1.5, 0.3333, -0.3333]
    """
    hidden, weight, bias = _as_autocast(hidden, weight, bias)
    config = HeadConfig(temperature, entropy, chunk_size)
    needs_gradient = [torch.is_grad_enabled() and x is not None and x.requires_grad for x in (hidden, weight, bias)]
    with torch.autocast(hidden.device.type, enabled=False), torch.no_grad():
        head = make_head(hidden, weight, bias, config, needs_gradient)
        total = hidden.new_zeros((), dtype=torch.float32)
        logprobs, entropies = hidden.new_zeros(2, len(targets), dtype=torch.float32)
        for rows in head.chunks:
            logprobs[rows], _, entropies[rows] = head.score(rows, targets[rows])
            ours, spread = logprobs[rows].clone().requires_grad_(), entropies[rows].clone()
            spread.requires_grad_(entropy == "grad")
            with torch.enable_grad():
                value = loss(rows, ours, None if entropy == "none" else spread)
            leaves = (ours, spread) if entropy == "grad" else (ours,)
            total += value.detach()
            gradients = torch.autograd.grad(value, leaves, materialize_grads=True)
            head.backward(rows, targets[rows], gradients[0], entropies[rows], gradients[-1])
    total = _WithGradients.apply(total, head.gradients(), hidden, weight, bias)  # type: ignore[no-untyped-call]
    return TokenScores(logprobs, None if entropy == "none" else entropies, total)


def _as_autocast(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    if not torch.is_autocast_enabled(hidden.device.type):
        return hidden, weight, bias
    dtype = torch.get_autocast_dtype(hidden.device.type)
    return hidden.to(dtype), weight.to(dtype), bias if bias is None else bias.to(dtype)


class _HeadScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, config: HeadConfig
    ) -> tuple[Tensor, Tensor]:
        head = make_head(hidden, weight, bias, config)
        logprobs, normalisers, entropies = hidden.new_zeros(3, len(targets), dtype=torch.float32)
        for rows in head.chunks:
            logprobs[rows], normalisers[rows], entropies[rows] = head.score(rows, targets[rows])
        ctx.save_for_backward(hidden, weight, bias, targets, normalisers, entropies)
        ctx.config = config
        if config.entropy != "grad":
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs: Tensor, grad_entropies: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, normalisers, entropies = ctx.saved_tensors
        config = ctx.config._replace(entropy="grad" if ctx.config.entropy == "grad" else "none")
        head = make_head(hidden, weight, bias, config, ctx.needs_input_grad)
        for rows in head.chunks:
            head.score_again(rows, normalisers[rows])
            head.backward(rows, targets[rows], grad_logprobs[rows], entropies[rows], grad_entropies[rows])
        return *head.gradients(), None, None


class _WithGradients(torch.autograd.Function):
    """`total`, whose gradients for `inputs` are known: `gradients`."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, gradients: tuple[Tensor | None, ...], *_: Tensor | None) -> Tensor:
        ctx.gradients = gradients
        return total.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None  # scaled in place, hence only once
        return None, None, *(g if g is None else g.mul_(upstream) for g in gradients)
