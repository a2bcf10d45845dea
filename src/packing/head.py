"""The output head: log-probs, entropies and losses of tokens without all of their logits in memory.

Logits exist for one chunk of tokens at a time. A loss that is a sum over tokens is taken with its gradient
chunk by chunk. For any other use, the backward computes the logits again, unless a batch has so few that they
are kept.

With z = ln Σ exp xᵥ and p = exp(x − z): ∂(log pₜ)/∂xᵥ = [v = t] − pᵥ and ∂H/∂xᵥ = −pᵥ (ln pᵥ + H), all in
float32.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

EntropyMode = Literal["none", "detached", "grad"]
"""Entropy of each token's distribution: not computed; without gradient; with gradient."""

KEPT = 2**26
"""Most logits that a batch keeps for its backward: 256 MiB."""

TokenLoss = Callable[[slice, Tensor, Tensor | None], Tensor]
"""Function of tokens, [t] log-probs and [t] entropies to the [] loss of these tokens.

The losses of all tokens add up."""

GRAPHS: dict[str, Any] = {"recompile_limit": 16}
"""Limit of compiled forms per function (torch's is 8).

Torch's own setting does not reach the threads of a backward."""
# before torch 2.13, where it reaches them
if "recompile_limit" not in inspect.signature(torch.compile).parameters:
    GRAPHS.clear()
    torch._dynamo.config.recompile_limit = 16


class TokenScores(NamedTuple):
    """Log-probs and entropies of T response tokens, from one forward."""

    logprobs: Tensor
    """[T] float32, log π(token | prompt, tokens before), nats."""
    entropy: Tensor | None
    """[T] float32, entropy of the distribution that the token was drawn from, nats."""
    loss: Tensor | None = None
    """[] float32 with gradient, if a loss was given; the scores then have no gradient."""


def token_scores(logits: Tensor, targets: Tensor, temperature: float, entropy: EntropyMode) -> TokenScores:
    """Return float32 log-probs of `targets` [T], and entropies, of softmax(logits [T, V] / temperature)."""
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
    targets: Tensor,
    temperature: float = 1.0,
    entropy: EntropyMode = "detached",
    chunk_size: int | None = None,
    loss: TokenLoss | None = None,
) -> TokenScores:
    """Return `token_scores` of the logits hidden · weightᵀ, computed in chunks of `chunk_size` rows.

    The backward computes the logits again: 8 instead of 6 FLOP per token and element of the head. There are
    two exceptions, which cost 6. Up to 2^26 logits are kept, unless a `chunk_size` is given. With a `loss`,
    each chunk's gradient is computed while its logits exist, and kept for a backward that runs once. Logits
    must be finite.

    Args:
        hidden: [T, d].
        weight: [V, d], of the same type as `hidden` outside autocast.
        targets: [T] long.
        temperature: Divides the logits.
        entropy: Whether entropies are computed, and have a gradient.
        chunk_size: Rows of logits at one time. None: 2^22 logits on a CPU, which fit in its caches; else
            2^27.
        loss: Called with one chunk after the other; the sum is returned with its gradient, the scores
            without.
    """
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        hidden, weight = (x.to(torch.get_autocast_dtype(device)) for x in (hidden, weight))
    learns = [torch.is_grad_enabled() and x.requires_grad for x in (hidden, weight)]
    rows = chunk_size or max((2**22 if device == "cpu" else 2**27) // len(weight), 1)
    keeps = loss is None and chunk_size is None and any(learns) and len(hidden) * len(weight) <= KEPT
    kept = hidden.new_empty(len(hidden), len(weight), dtype=torch.float32) if keeps else None
    config = HeadConfig(temperature, entropy, rows, kept, loss, (False, False) if loss is None else learns)
    with torch.autocast(device, enabled=False):
        logprobs, entropies, total = _HeadScores.apply(hidden, weight, targets, config)  # type: ignore[no-untyped-call]
    return TokenScores(logprobs, None if entropy == "none" else entropies, None if loss is None else total)


class _HeadScores(torch.autograd.Function):
    """[T] log-probs, [T] entropies and the sum of the losses; with a loss, only the sum has a gradient."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, config: HeadConfig
    ) -> tuple[Tensor, Tensor, Tensor]:
        head = (FusedHead if fuses(weight) else Head)(hidden, weight, targets, config)
        logprobs, normalisers, entropies = hidden.new_zeros(3, len(targets), dtype=torch.float32)
        total = hidden.new_zeros((), dtype=torch.float32)
        for rows in head.chunks:
            logprobs[rows], normalisers[rows], entropies[rows] = head.score(rows)
            if config.loss:
                total += head.learn(rows, config.loss, logprobs[rows], entropies[rows])
        ctx.config = config._replace(kept=None)
        ctx.gradients = head.gradients()
        ctx.set_materialize_grads(False)  # entropies that nothing learns from cost their backward nothing
        if config.loss:
            ctx.mark_non_differentiable(logprobs, entropies)
        else:
            ctx.save_for_backward(hidden, weight, targets, normalisers, entropies, config.kept)
            ctx.mark_non_differentiable(total, *([] if config.entropy == "grad" else [entropies]))
        return logprobs, entropies, total

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprobs: Tensor, grad_entropies: Tensor, upstream: Tensor
    ) -> tuple[Any, ...]:
        if ctx.config.loss:
            gradients = ctx.gradients
            ctx.gradients = None  # scaled in place, hence only once
            return *(g if g is None else g.mul_(upstream) for g in gradients), None, None
        hidden, weight, targets, normalisers, entropies, kept = ctx.saved_tensors
        entropy = "none" if grad_entropies is None else "grad"
        config = ctx.config._replace(entropy=entropy, kept=kept, needs_gradient=ctx.needs_input_grad)
        head = (FusedHead if fuses(weight) else Head)(hidden, weight, targets, config)
        zeros = torch.zeros_like(normalisers)
        grad_logprobs, grad_entropies = (zeros if x is None else x for x in (grad_logprobs, grad_entropies))
        for rows in head.chunks:
            head.score_again(rows, normalisers[rows])
            head.backward(rows, grad_logprobs[rows], entropies[rows], grad_entropies[rows])
        return *head.gradients(), None, None


class HeadConfig(NamedTuple):
    """Inputs that all chunks share."""

    temperature: float
    entropy: EntropyMode
    chunk_size: int
    kept: Tensor | None = None  # [T, V] float32 logits for the backward
    loss: TokenLoss | None = None
    needs_gradient: Sequence[bool] = (False, False)  # of hidden states and weight


def fuses(weight: Tensor) -> bool:
    """Return whether elementwise work is compiled: on GPUs, unless `TORCH_COMPILE_DISABLE=1`."""
    return weight.is_cuda and not torch._dynamo.config.disable


class Head:
    """Output head for CPUs, which scores one chunk of rows after another, uncompiled, in reused buffers."""

    def __init__(self, hidden: Tensor, weight: Tensor, targets: Tensor, config: HeadConfig) -> None:
        self.hidden = hidden
        self.weight = weight
        self.targets = targets
        self.temperature, self.entropy, self.chunk_size, self.kept, _, needs_gradient = config
        # Chunks of about equal size: a chunk of a single row would be compiled separately.
        size = len(hidden)
        count = -(-len(hidden) // self.chunk_size)
        self.chunks = [slice(size * part // count, size * (part + 1) // count) for part in range(count)]
        self.x = weight.new_empty(min(self.chunk_size, len(hidden)), len(weight), dtype=torch.float32)
        self.grad_hidden = torch.empty_like(hidden) if needs_gradient[0] else None
        # Sums over chunks are taken in float32, whatever the type of the products.
        self.grad_weight = torch.zeros_like(weight, dtype=torch.float32) if needs_gradient[1] else None

    @cached_property
    def p(self) -> Tensor:
        """Buffer of unnormalised probabilities."""
        return self.x if self.entropy == "none" else torch.empty_like(self.x)

    def _multiply(self, rows: slice) -> Tensor:
        """Return [rows, V] float32, hidden · weightᵀ.

        CUDA makes it from two-byte types directly, without a copy.
        """
        hidden = self.hidden[rows]
        weight = self.weight.t()
        self.logits = out = self.x[: len(hidden)] if self.kept is None else self.kept[rows]
        if weight.dtype == torch.float32:
            return torch.mm(hidden, weight, out=out)
        if weight.is_cuda:
            return torch.mm(hidden, weight, out_dtype=out.dtype, out=out)
        return out.copy_(hidden @ weight)

    def _logits(self, rows: slice) -> Tensor:
        x = self._multiply(rows)
        return x if self.temperature == 1 else x.div_(self.temperature)

    def score(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Return [rows] log-probs, normalisers z and entropies (zeros if not computed) of a chunk."""
        x = self._logits(rows)
        top = x.amax(1)
        chosen = x.gather(1, self.targets[rows, None])[:, 0]
        x = torch.sub(x, top[:, None], out=self.x[: len(x)])
        p = torch.exp(x, out=self.p[: len(x)])
        self.total = p.sum(1)
        log_total = self.total.log()
        normalisers = top + log_total
        nothing = self.entropy == "none"
        entropies = torch.zeros_like(top) if nothing else log_total - torch.linalg.vecdot(p, x) / self.total
        return chosen - normalisers, normalisers, entropies

    def score_again(self, rows: slice, normalisers: Tensor) -> None:
        """Prepare `backward` of a chunk whose normalisers are known."""
        x = self._logits(rows) if self.kept is None else self.kept[rows]
        x = torch.sub(x, normalisers[:, None], out=self.x[: len(x)])
        torch.exp(x, out=self.p[: len(x)])
        self.total = torch.ones_like(normalisers)

    def _gradient(
        self, targets: Tensor, grad_logprobs: Tensor, entropies: Tensor, grad_entropies: Tensor
    ) -> Tensor:
        """Return [rows, V] in the weight's type: gradient at `_multiply`'s output for the last chunk."""
        p = self.p[: len(targets)]  # in proportion to the probabilities
        x = self.x[: len(targets)]  # ln p
        share = 1 / (self.temperature * self.total)
        if self.entropy == "grad":
            x.add_((entropies - self.total.log())[:, None]).mul_(-(grad_entropies * share)[:, None])
            p.mul_(x.sub_((grad_logprobs * share)[:, None]))
        else:
            p.mul_(-(grad_logprobs * share)[:, None])
        return p.scatter_add_(1, targets[:, None], grad_logprobs[:, None] / self.temperature).to(
            self.weight.dtype
        )

    def backward(self, rows: slice, grad_logprobs: Tensor, entropies: Tensor, grad_entropies: Tensor) -> None:
        """Add the gradient through the chunk scored last, given gradients [rows] of its scores."""
        hidden = self.hidden[rows]
        gradient = self._gradient(self.targets[rows], grad_logprobs, entropies, grad_entropies)
        if self.grad_hidden is not None:
            torch.mm(gradient, self.weight, out=self.grad_hidden[rows])
        total = self.grad_weight
        if total is None:
            return
        if gradient.dtype == total.dtype:
            total.addmm_(gradient.t(), hidden)
        elif gradient.is_cuda:
            torch.addmm(total, gradient.t(), hidden, out_dtype=total.dtype, out=total)
        else:
            total.add_(gradient.t() @ hidden)

    def learn(self, rows: slice, loss: TokenLoss, logprobs: Tensor, entropies: Tensor) -> Tensor:
        """Return the [] loss of the chunk scored last, given its scores [rows], and add its gradient."""
        leaves = [x.detach().clone().requires_grad_() for x in (logprobs, entropies)]
        with torch.enable_grad():
            spread = {"none": None, "detached": entropies.clone(), "grad": leaves[1]}[self.entropy]
            value = loss(rows, leaves[0], spread)
        gradients = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
        self.backward(rows, gradients[0], entropies, gradients[1])
        return value.detach()

    def gradients(self) -> tuple[Tensor | None, ...]:
        """Return gradients of `hidden` and `weight`, in the types of these; None if not needed."""
        total = self.grad_weight
        return self.grad_hidden, total if total is None else total.to(self.weight.dtype)


class FusedHead(Head):
    """Output head for GPUs, in two compiled passes that keep only the logits, [rows, V], between them."""

    def score(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Score a chunk; see `Head.score`."""
        inputs = (self._multiply(rows), self.targets[rows], self.temperature, self.entropy != "none")
        logprobs, self.normalisers, entropies = compiled(score)(*inputs)
        return logprobs, self.normalisers, entropies

    def score_again(self, rows: slice, normalisers: Tensor) -> None:
        """Prepare `backward` of a chunk; see `Head.score_again`."""
        self.logits = self._multiply(rows) if self.kept is None else self.kept[rows]
        self.normalisers = normalisers

    def _gradient(
        self, targets: Tensor, grad_logprobs: Tensor, entropies: Tensor, grad_entropies: Tensor
    ) -> Tensor:
        spread = (entropies, grad_entropies) if self.entropy == "grad" else None
        inputs = (
            self.logits,
            targets,
            self.normalisers,
            grad_logprobs,
            spread,
            self.temperature,
            self.weight.dtype,
        )
        gradient: Tensor = compiled(gradient_of_logits)(*inputs)
        return gradient


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function`; raise an error instead of running uncompiled."""
    made: Callable[..., Any] = torch.compile(function, fullgraph=True, dynamic=True, **GRAPHS)
    return made


def score(
    x: Tensor, targets: Tensor, temperature: float, with_entropy: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return [rows] log-probs of `targets`, normalisers z, and entropies or zeros.

    `x` are the logits, [rows, V] float32.
    """
    x = x / temperature
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
    targets: Tensor,
    normalisers: Tensor,
    grad_logprobs: Tensor,
    spread: tuple[Tensor, Tensor] | None,
    temperature: float,
    dtype: torch.dtype,
) -> Tensor:
    """Return [rows, V] in `dtype`, the gradient of the logits before the division by the temperature.

    `x` are the logits, [rows, V] float32.
    `spread` has the entropies [rows] and their gradients [rows]; None if no gradient reaches them.
    """
    logprobs = x / temperature - normalisers[:, None]
    factor = -grad_logprobs[:, None]
    if spread is not None:
        entropies, grad_entropies = spread
        factor = factor - grad_entropies[:, None] * (logprobs + entropies[:, None])
    chosen = torch.arange(x.shape[1], device=x.device) == targets[:, None]
    gradient = logprobs.exp() * factor + torch.where(chosen, grad_logprobs[:, None], 0.0)
    return (gradient / temperature).to(dtype)
