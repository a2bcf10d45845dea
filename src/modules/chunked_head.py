"""The output head: log-probs, entropies and losses of tokens without ever keeping their logits.

Logits exist for one chunk of tokens at a time. A loss that is a sum over tokens is taken chunk by chunk together with
its gradient (`head_loss`); for any other use the backward makes the logits again (`head_scores`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

EntropyMode = Literal["none", "detached", "grad"]
"""Of each token's distribution: not at all; without gradient; with it."""
TokenLoss = Callable[[slice, Tensor, Tensor | None], Tensor]
"""(tokens, their [t] log-probs, their [t] entropies) → [] loss of these tokens; the losses of all tokens add up."""


class TokenScores(NamedTuple):
    """What a forward says about T response tokens."""

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
    config = _Config(temperature, entropy, chunk_size)
    logprobs, entropies = _HeadScores.apply(hidden, weight, bias, targets, config)
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
    with torch.autocast(hidden.device.type, enabled=False):
        config = _Config(temperature, entropy, chunk_size)
        total, logprobs, entropies = _HeadLoss.apply(hidden, weight, bias, targets, config, loss)
    return TokenScores(logprobs, None if entropy == "none" else entropies, total)


def _as_autocast(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    if not torch.is_autocast_enabled(hidden.device.type):
        return hidden, weight, bias
    dtype = torch.get_autocast_dtype(hidden.device.type)
    return hidden.to(dtype), weight.to(dtype), bias if bias is None else bias.to(dtype)


class _Config(NamedTuple):
    temperature: float
    entropy: EntropyMode
    chunk_size: int


class _HeadScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, config: _Config
    ) -> tuple[Tensor, Tensor]:
        head = _Head(hidden, weight, bias, config)
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
        head = _Head(hidden, weight, bias, config, ctx.needs_input_grad)
        for rows in head.chunks:
            head.score_again(rows, normalisers[rows])
            head.backward(rows, targets[rows], grad_logprobs[rows], entropies[rows], grad_entropies[rows])
        return *head.gradients(), None, None


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, config: _Config, loss: TokenLoss
    ) -> tuple[Tensor, Tensor, Tensor]:
        head = _Head(hidden, weight, bias, config, ctx.needs_input_grad)
        entropy = config.entropy
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
        ctx.gradients = head.gradients()
        ctx.mark_non_differentiable(logprobs, entropies)
        return total, logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None  # scaled in place, hence only once
        return *(g if g is None else g.mul_(upstream) for g in gradients), None, None, None


class _Head:
    """Logits of one chunk of rows after the other, what they say, and what flows back through them.

    With z = ln Σ exp xᵥ and p = exp(x − z): ∂(log pₜ)/∂xᵥ = [v = t] − pᵥ and ∂H/∂xᵥ = −pᵥ (ln pᵥ + H). All buffers of
    [chunk, V] are float32 and reused from chunk to chunk.
    """

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        config: _Config,
        needs_gradient: Sequence[bool] = (False, False, False),
    ) -> None:
        self.hidden, self.weight, self.bias = hidden, weight, bias
        self.temperature, self.entropy, chunk_size = config
        self.chunks = [slice(start, start + chunk_size) for start in range(0, len(hidden), chunk_size)]
        self.x = weight.new_empty(min(chunk_size, len(hidden)), len(weight), dtype=torch.float32)
        self.product = self.x if weight.dtype == torch.float32 else torch.empty_like(self.x, dtype=weight.dtype)
        self.p = self.x if self.entropy == "none" else torch.empty_like(self.x)
        self.total = self.x[:0, 0]
        self.grad_hidden = torch.empty_like(hidden) if needs_gradient[0] else None
        # Sums over chunks are taken in float32, whatever the type of the products.
        self.grad_weight = torch.zeros_like(weight, dtype=torch.float32) if needs_gradient[1] else None
        self.grad_bias = torch.zeros(len(weight), device=weight.device) if needs_gradient[2] else None

    def _logits(self, rows: slice) -> Tensor:
        hidden = self.hidden[rows]
        product = torch.mm(hidden, self.weight.t(), out=self.product[: len(hidden)])
        x = product if product.dtype == torch.float32 else self.x[: len(hidden)].copy_(product)
        if self.bias is not None:
            x.add_(self.bias)
        return x if self.temperature == 1 else x.div_(self.temperature)

    def score(self, rows: slice, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[rows] log-probs, normalisers z and entropies (zeros where there are none) of a chunk."""
        x = self._logits(rows)
        top = x.amax(1)
        chosen = x.gather(1, targets[:, None])[:, 0]
        x.sub_(top[:, None])
        p = torch.exp(x, out=self.p[: len(x)])
        self.total = p.sum(1)
        log_total = self.total.log()
        normalisers = top + log_total
        nothing = self.entropy == "none"
        entropies = torch.zeros_like(top) if nothing else log_total - torch.linalg.vecdot(p, x) / self.total
        return chosen - normalisers, normalisers, entropies

    def score_again(self, rows: slice, normalisers: Tensor) -> None:
        """A chunk whose normalisers are known."""
        x = self._logits(rows).sub_(normalisers[:, None])
        torch.exp(x, out=self.p[: len(x)])
        self.total = torch.ones_like(normalisers)

    def backward(
        self, rows: slice, targets: Tensor, grad_logprobs: Tensor, entropies: Tensor, grad_entropies: Tensor
    ) -> None:
        """Add what flows back through the chunk that was scored last, given gradients [rows] of its scores."""
        p, x = self.p[: len(targets)], self.x[: len(targets)]  # in proportion to the probabilities; ln p
        share = 1 / (self.temperature * self.total)
        if self.entropy == "grad":
            x.add_((entropies - self.total.log())[:, None]).mul_(-(grad_entropies * share)[:, None])
            p.mul_(x.sub_((grad_logprobs * share)[:, None]))
        else:
            p.mul_(-(grad_logprobs * share)[:, None])
        p.scatter_add_(1, targets[:, None], grad_logprobs[:, None] / self.temperature)
        product = p.to(self.weight.dtype)
        if self.grad_hidden is not None:
            torch.mm(product, self.weight, out=self.grad_hidden[rows])
        if self.grad_weight is not None and product is p:
            self.grad_weight.addmm_(product.t(), self.hidden[rows])
        elif self.grad_weight is not None:
            self.grad_weight.add_(product.t() @ self.hidden[rows])
        if self.grad_bias is not None:
            self.grad_bias.add_(p.sum(0))

    def gradients(self) -> tuple[Tensor | None, ...]:
        """Of `hidden`, `weight` and `bias`, in their types; None where not asked for."""
        sums = (g if g is None else g.to(self.weight.dtype) for g in (self.grad_weight, self.grad_bias))
        return self.grad_hidden, *sums
