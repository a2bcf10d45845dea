"""Logits of one chunk of rows after the other, what they say, and what flows back through them.

With z = ln Σ exp xᵥ and p = exp(x − z): ∂(log pₜ)/∂xᵥ = [v = t] − pᵥ and ∂H/∂xᵥ = −pᵥ (ln pᵥ + H), all in float32.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

EntropyMode = Literal["none", "detached", "grad"]
"""Of each token's distribution: not at all; without gradient; with it."""


GRAPHS: dict[str, Any] = {"recompile_limit": 16}
"""How many compiled forms a function may have: autocast, gradients, entropies and lengths of one make some, and torch
alone allows eight. Given to each `torch.compile`: torch's own setting does not reach the threads of a backward."""
if "recompile_limit" not in inspect.signature(torch.compile).parameters:  # before torch 2.13, where it reaches them
    GRAPHS.clear()
    torch._dynamo.config.recompile_limit = 16


class HeadConfig(NamedTuple):
    """Inputs that all chunks share."""

    temperature: float
    entropy: EntropyMode
    chunk_size: int


def make_head(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    config: HeadConfig,
    needs_gradient: Sequence[bool] = (False, False, False),
) -> Head:
    """The head that suits the device of `weight`; arguments as of `Head`."""
    kind = FusedHead if fuses(weight) else Head
    return kind(hidden, weight, bias, config, needs_gradient)


def fuses(weight: Tensor) -> bool:
    """Whether elementwise work is compiled into few passes: on GPUs, unless `TORCH_COMPILE_DISABLE=1`."""
    return weight.is_cuda and not torch._dynamo.config.disable


class Head:
    """Operation by operation, in buffers that are reused from chunk to chunk: for CPUs."""

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        config: HeadConfig,
        needs_gradient: Sequence[bool] = (False, False, False),
    ) -> None:
        self.hidden, self.weight, self.bias = hidden, weight, bias
        self.temperature, self.entropy, chunk_size = config
        rows = len(hidden)
        self.chunks = [slice(start, min(start + chunk_size, rows)) for start in range(0, rows, chunk_size)]
        self.x = weight.new_empty(min(chunk_size, len(hidden)), len(weight), dtype=torch.float32)
        self._make_buffers()
        self.grad_hidden = torch.empty_like(hidden) if needs_gradient[0] else None
        # Sums over chunks are taken in float32, whatever the type of the products.
        self.grad_weight = torch.zeros_like(weight, dtype=torch.float32) if needs_gradient[1] else None
        self.grad_bias = torch.zeros(len(weight), device=weight.device) if needs_gradient[2] else None

    def _make_buffers(self) -> None:
        self.product = (
            self.x if self.weight.dtype == torch.float32 else torch.empty_like(self.x, dtype=self.weight.dtype)
        )
        self.p = self.x if self.entropy == "none" else torch.empty_like(self.x)
        self.total = self.x[:0, 0]

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


class FusedHead(Head):
    """The same in two compiled passes over the logits and one product more precise: for GPUs.

    Products of two-byte types leave the multiplication in float32, so that no copy converts them. What is kept of a
    chunk is its logits; its gradient is written in the type of the weight at once.
    """

    def _make_buffers(self) -> None:
        self.normalisers = self.x[:0, 0]
        sizes = [rows.stop - rows.start for rows in self.chunks[-2:]]
        if len(sizes) == 2 and sizes[0] > 2 and sizes[1] == 1:  # one row would be compiled on its own
            start, end = self.chunks[-2].start, self.chunks[-1].stop
            self.chunks[-2:] = [slice(start, end - 2), slice(end - 2, end)]

    def _multiply(self, rows: slice) -> Tensor:
        hidden = self.hidden[rows]
        out = self.x[: len(hidden)]
        if self.weight.dtype == torch.float32:
            return torch.mm(hidden, self.weight.t(), out=out)
        if not self.weight.is_cuda:  # only CUDA has products of another type than their factors
            return out.copy_(hidden @ self.weight.t())
        return torch.mm(hidden, self.weight.t(), out_dtype=torch.float32, out=out)

    def score(self, rows: slice, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As of `Head`."""
        x, with_entropy = self._multiply(rows), self.entropy != "none"
        logprobs, self.normalisers, entropies = compiled(score)(x, self.bias, targets, self.temperature, with_entropy)
        return logprobs, self.normalisers, entropies

    def score_again(self, rows: slice, normalisers: Tensor) -> None:
        """As of `Head`."""
        self._multiply(rows)
        self.normalisers = normalisers

    def backward(
        self, rows: slice, targets: Tensor, grad_logprobs: Tensor, entropies: Tensor, grad_entropies: Tensor
    ) -> None:
        """As of `Head`."""
        x, hidden = self.x[: len(targets)], self.hidden[rows]
        spread = (entropies, grad_entropies) if self.entropy == "grad" else None
        gradient = compiled(gradient_of_logits)(
            x, self.bias, targets, self.normalisers, grad_logprobs, spread, self.temperature, self.weight.dtype
        )
        if self.grad_hidden is not None:
            torch.mm(gradient, self.weight, out=self.grad_hidden[rows])
        if self.grad_weight is not None and gradient.is_cuda and gradient.dtype != torch.float32:
            torch.addmm(self.grad_weight, gradient.t(), hidden, out_dtype=torch.float32, out=self.grad_weight)
        elif self.grad_weight is not None:
            self.grad_weight.add_(gradient.t() @ hidden)
        if self.grad_bias is not None:
            self.grad_bias.add_(gradient.sum(0, dtype=torch.float32))


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` compiled; it raises where it would have to run uncompiled."""
    made: Callable[..., Any] = torch.compile(function, fullgraph=True, dynamic=True, **GRAPHS)
    return made


def score(
    x: Tensor, bias: Tensor | None, targets: Tensor, temperature: float, with_entropy: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """[rows] log-probs of `targets`, normalisers z, and entropies (zeros without) of logits `x` [rows, V] float32."""
    x = (x if bias is None else x + bias) / temperature
    top = x.amax(1)
    centred = x - top[:, None]
    weights = centred.exp()
    total = weights.sum(1)
    normalisers = top + total.log()
    chosen = x.gather(1, targets[:, None])[:, 0]
    entropies = total.log() - (weights * centred).sum(1) / total if with_entropy else torch.zeros_like(top)
    return chosen - normalisers, normalisers, entropies


def gradient_of_logits(
    x: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    normalisers: Tensor,
    grad_logprobs: Tensor,
    spread: tuple[Tensor, Tensor] | None,
    temperature: float,
    dtype: torch.dtype,
) -> Tensor:
    """[rows, V] in `dtype`, the gradient of what `x` was before bias and temperature.

    `spread` are entropies [rows] and the gradients [rows] that reach them, where any do.
    """
    logprobs = (x if bias is None else x + bias) / temperature - normalisers[:, None]
    factor = -grad_logprobs[:, None]
    if spread is not None:
        entropies, grad_entropies = spread
        factor = factor - grad_entropies[:, None] * (logprobs + entropies[:, None])
    chosen = torch.arange(x.shape[1], device=x.device) == targets[:, None]
    gradient = logprobs.exp() * factor + torch.where(chosen, grad_logprobs[:, None], 0.0)
    return (gradient / temperature).to(dtype)
