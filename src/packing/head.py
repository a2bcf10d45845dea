"""Output head: log-probs, entropies and losses of tokens, without all of their logits in memory.

Logits exist for one chunk of tokens at a time. If a loss is a sum over tokens, its gradient is computed with
it, chunk by chunk. For any other use, the backward computes the logits again, unless a batch has so few
logits that they are kept.

With z = ln Σ exp xᵥ and p = exp(x − z): ∂(log pₜ)/∂xᵥ = [v = t] − pᵥ and ∂H/∂xᵥ = −pᵥ (ln pᵥ + H), all in
float32.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

EntropyMode = Literal["none", "detached", "grad"]
"""Entropy of each token's distribution: not computed; without gradient; with gradient."""

KEPT = 2**26
"""Largest number of logits that a batch keeps for its backward: 256 MiB."""

TokenLoss = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Function from tokens [t], ascending, with their log-probs [t] and entropies [t], to their loss [].

The losses of all tokens add up."""

GRAPHS: dict[str, Any] = {"recompile_limit": 16}
"""Largest number of compiled forms of a function (torch's default is 8).

Torch's own setting does not apply in the threads of a backward."""
# before torch 2.13, where it reaches them
if "recompile_limit" not in inspect.signature(torch.compile).parameters:
    GRAPHS.clear()
    torch._dynamo.config.recompile_limit = 16


class Targets(NamedTuple):
    """T response tokens, and the number of the state, of S states, that predicts each. Made by `of`."""

    tokens: Tensor
    """[T] long."""
    state: Tensor
    """[T] long: state that predicts each token; each of 0..S−1 predicts one or more."""
    order: Tensor
    """[T] long: tokens ordered by their states."""
    before: Tensor
    """[S + 1] long, on the CPU: number of tokens predicted by the states before each; the last is T."""

    @classmethod
    def of(cls, tokens: Tensor, predictors: Tensor) -> tuple[Tensor, Targets]:
        """Return the distinct rows in `predictors`, ascending, [S] long, and the targets of these S states.

        Args:
            tokens: [T] long, on the CPU.
            predictors: [T] long, on the CPU: row of the hidden state that predicts each token.
        """
        counts = predictors.bincount()
        states = counts.nonzero()[:, 0]
        state = (counts > 0).cumsum(0)[predictors] - 1
        before = F.pad(counts[states].cumsum(0), (1, 0))
        return states, cls(tokens, state, state.argsort(stable=True), before)

    def to(self, device: torch.device | str) -> Targets:
        """Move all tensors except `before`, which stays on the CPU."""
        tokens, state, order = (values.to(device) for values in self[:3])
        return Targets(tokens, state, order, self.before)


class TokenScores(NamedTuple):
    """Log-probs and entropies of T response tokens, from one forward."""

    logprobs: Tensor
    """[T] float32, log π(token | prompt, tokens before), nats."""
    entropy: Tensor | None
    """[T] float32, entropy of the distribution that predicts the token, nats."""
    loss: Tensor | None = None
    """[] float32 with gradient, if a loss was given; the scores then have no gradient."""


def token_scores(logits: Tensor, targets: Tensor, temperature: float, entropy: EntropyMode) -> TokenScores:
    """Return the log-probs of `targets` [T] and the entropies [T] under softmax(logits / temperature).

    Both are float32. `logits` are [T, V]. The entropies are None if `entropy="none"`.
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
    targets: Targets,
    temperature: float = 1.0,
    entropy: EntropyMode = "detached",
    chunk_size: int | None = None,
    loss: TokenLoss | None = None,
) -> TokenScores:
    """Return `token_scores` of the logits hidden · weightᵀ, computed in chunks of `chunk_size` rows.

    The backward computes the logits again: 8 instead of 6 FLOP per state and element of the head. There are
    two exceptions, which cost 6. Up to 2^26 logits are kept, unless a `chunk_size` is given. With a `loss`,
    each chunk's gradient is computed while its logits exist, and kept for a backward that runs once. Logits
    must be finite.

    Args:
        hidden: [S, d] states.
        weight: [V, d], of the same type as `hidden` outside autocast.
        targets: The T tokens and the states that predict them.
        temperature: Divisor of the logits.
        entropy: Whether entropies are computed, and have a gradient.
        chunk_size: Rows of logits computed at a time. None limits a chunk to 2^22 logits on a CPU, which fit
            in its caches, and to 2^27 on other devices.
        loss: Called once per chunk, with the tokens of the chunk. The summed loss is returned with its
            gradient; the scores then have no gradient.
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
    """Autograd function for log-probs [T], entropies [T] and the sum of the losses [].

    With a loss, only the sum has a gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Targets, config: HeadConfig
    ) -> tuple[Tensor, Tensor, Tensor]:
        head = (FusedHead if fuses(weight) else Head)(hidden, weight, targets, config)
        logprobs = hidden.new_zeros(len(targets.tokens), dtype=torch.float32)
        normalisers, spread = hidden.new_zeros(2, len(hidden), dtype=torch.float32)
        total = hidden.new_zeros((), dtype=torch.float32)
        for chunk in head.chunks:
            states = chunk.states
            logprobs[chunk.tokens], normalisers[states], spread[states] = head.score(chunk)
            if config.loss:
                total += head.learn(chunk, config.loss, logprobs[chunk.tokens], spread[states])
        ctx.config = config._replace(kept=None)
        ctx.gradients = head.gradients()
        ctx.targets = targets
        ctx.set_materialize_grads(False)  # entropies that nothing learns from cost their backward nothing
        entropies = spread[targets.state]
        if config.loss:
            ctx.mark_non_differentiable(logprobs, entropies)
        else:
            ctx.save_for_backward(hidden, weight, normalisers, spread, config.kept)
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
        hidden, weight, normalisers, spread, kept = ctx.saved_tensors
        entropy = "none" if grad_entropies is None else "grad"
        config = ctx.config._replace(entropy=entropy, kept=kept, needs_gradient=ctx.needs_input_grad)
        head = (FusedHead if fuses(weight) else Head)(hidden, weight, ctx.targets, config)
        zeros = hidden.new_zeros(len(ctx.targets.tokens), dtype=torch.float32)
        grad_logprobs, grad_entropies = (zeros if x is None else x for x in (grad_logprobs, grad_entropies))
        for chunk in head.chunks:
            tokens = chunk.tokens
            head.score_again(chunk.states, normalisers[chunk.states])
            head.backward(chunk, grad_logprobs[tokens], spread[chunk.states], grad_entropies[tokens])
        return *head.gradients(), None, None


class HeadConfig(NamedTuple):
    """Settings that an output head uses for every chunk, with the logits that are kept for the backward."""

    temperature: float
    entropy: EntropyMode
    chunk_size: int
    kept: Tensor | None = None  # [S, V] float32 logits for the backward
    loss: TokenLoss | None = None
    needs_gradient: Sequence[bool] = (False, False)  # of hidden states and weight


def fuses(weight: Tensor) -> bool:
    """Return whether elementwise work is compiled: true on GPUs, unless `TORCH_COMPILE_DISABLE=1`."""
    return weight.is_cuda and not torch._dynamo.config.disable


class Chunk(NamedTuple):
    """States whose logits are computed together, and the tokens that these states predict."""

    states: slice
    tokens: Tensor
    """[t] long, ascending."""
    rows: Tensor
    """[t] long: state of each token, counted from the chunk's first state."""
    targets: Tensor
    """[t] long."""


def chunks_of(targets: Targets, size: int) -> list[Chunk]:
    """Cut the states into chunks of nearly equal size, at most `size`.

    With a fixed size, a remainder of a single row would have to be compiled separately.
    """
    states = len(targets.before) - 1
    count = -(-states // size)
    bounds = [states * part // count for part in range(count + 1)]
    chunks: list[Chunk] = []
    for first, end in pairwise(bounds):
        tokens = targets.order[int(targets.before[first]) : int(targets.before[end])].sort().values
        chunks.append(Chunk(slice(first, end), tokens, targets.state[tokens] - first, targets.tokens[tokens]))
    return chunks


def sum_by(index: Tensor, values: Tensor, size: int) -> Tensor:
    """Sum the `values` [n] that have the same `index` [n] long; return [size] sums.

    Values are added in a reproducible order.
    """
    sums = values.new_zeros(size)
    if values.is_cuda:  # where `index_add_` adds in any order, and on CPUs this
        return sums.index_put_((index,), values, accumulate=True)
    return sums.index_add_(0, index, values)


class Head:
    """Output head for CPUs, which scores one chunk of rows after another, uncompiled, in reused buffers."""

    def __init__(self, hidden: Tensor, weight: Tensor, targets: Targets, config: HeadConfig) -> None:
        self.hidden = hidden
        self.weight = weight
        self.temperature, self.entropy, chunk_size, self.kept, _, needs_gradient = config
        self.chunks = chunks_of(targets, chunk_size)
        self.x = weight.new_empty(min(chunk_size, len(hidden)), len(weight), dtype=torch.float32)
        self.grad_hidden = torch.empty_like(hidden) if needs_gradient[0] else None
        # Sums over chunks are taken in float32, whatever the type of the products.
        self.grad_weight = torch.zeros_like(weight, dtype=torch.float32) if needs_gradient[1] else None

    @cached_property
    def p(self) -> Tensor:
        """Buffer of unnormalised probabilities."""
        return self.x if self.entropy == "none" else torch.empty_like(self.x)

    def _multiply(self, rows: slice) -> Tensor:
        """Return hidden · weightᵀ, [rows, V] float32.

        CUDA computes float32 from two-byte types directly, without a copy.
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

    def score(self, chunk: Chunk) -> tuple[Tensor, Tensor, Tensor]:
        """Return a chunk's log-probs [t], log-normalisers [s] and entropies [s] (zeros if not computed)."""
        x = self._logits(chunk.states)
        top = x.amax(1)
        chosen = x[chunk.rows, chunk.targets]
        x = torch.sub(x, top[:, None], out=self.x[: len(x)])
        p = torch.exp(x, out=self.p[: len(x)])
        self.total = p.sum(1)
        log_total = self.total.log()
        normalisers = top + log_total
        nothing = self.entropy == "none"
        entropies = torch.zeros_like(top) if nothing else log_total - torch.linalg.vecdot(p, x) / self.total
        return chosen - normalisers[chunk.rows], normalisers, entropies

    def score_again(self, rows: slice, normalisers: Tensor) -> None:
        """Prepare `backward` of a chunk whose normalisers are known."""
        x = self._logits(rows) if self.kept is None else self.kept[rows]
        x = torch.sub(x, normalisers[:, None], out=self.x[: len(x)])
        torch.exp(x, out=self.p[: len(x)])
        self.total = torch.ones_like(normalisers)

    def _gradient(
        self, chunk: Chunk, grad_logprobs: Tensor, entropies: Tensor, grad_entropies: Tensor
    ) -> Tensor:
        """Return the gradient of `_multiply`'s output for the last chunk, [s, V] in the weight's dtype."""
        size = len(entropies)
        p = self.p[:size]  # in proportion to the probabilities
        x = self.x[:size]  # ln p
        share = 1 / (self.temperature * self.total)
        grad_states = sum_by(chunk.rows, grad_logprobs, size) * share
        if self.entropy == "grad":
            grad_spread = sum_by(chunk.rows, grad_entropies, size) * share
            x.add_((entropies - self.total.log())[:, None]).mul_(-grad_spread[:, None])
            p.mul_(x.sub_(grad_states[:, None]))
        else:
            p.mul_(-grad_states[:, None])
        p.index_put_((chunk.rows, chunk.targets), grad_logprobs / self.temperature, accumulate=True)
        return p.to(self.weight.dtype)

    def backward(
        self, chunk: Chunk, grad_logprobs: Tensor, entropies: Tensor, grad_entropies: Tensor
    ) -> None:
        """Add the gradient that flows through the chunk scored last.

        Args:
            chunk: The chunk.
            grad_logprobs: [t] gradients of the log-probs of tokens.
            entropies: [s] entropies of states.
            grad_entropies: [t] gradients of the entropies of tokens.
        """
        hidden = self.hidden[chunk.states]
        gradient = self._gradient(chunk, grad_logprobs, entropies, grad_entropies)
        if self.grad_hidden is not None:
            torch.mm(gradient, self.weight, out=self.grad_hidden[chunk.states])
        total = self.grad_weight
        if total is None:
            return
        if gradient.dtype == total.dtype:
            total.addmm_(gradient.t(), hidden)
        elif gradient.is_cuda:
            torch.addmm(total, gradient.t(), hidden, out_dtype=total.dtype, out=total)
        else:
            total.add_(gradient.t() @ hidden)

    def learn(self, chunk: Chunk, loss: TokenLoss, logprobs: Tensor, entropies: Tensor) -> Tensor:
        """Return the loss of the chunk scored last, [], and add the gradient of this loss.

        Args:
            chunk: The chunk.
            loss: Loss of the chunk's tokens.
            logprobs: [t] log-probs of the chunk's tokens.
            entropies: [s] entropies of the chunk's states.
        """
        spread = entropies[chunk.rows]
        leaves = [x.detach().clone().requires_grad_() for x in (logprobs, spread)]
        with torch.enable_grad():
            given = {"none": None, "detached": spread.clone(), "grad": leaves[1]}[self.entropy]
            value = loss(chunk.tokens, leaves[0], given)
        gradients = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
        self.backward(chunk, gradients[0], entropies, gradients[1])
        return value.detach()

    def gradients(self) -> tuple[Tensor | None, ...]:
        """Return the gradients of `hidden` and `weight` in their dtypes; None if a gradient is not needed."""
        total = self.grad_weight
        return self.grad_hidden, total if total is None else total.to(self.weight.dtype)


class FusedHead(Head):
    """Output head for GPUs, in two compiled passes that keep only the logits, [s, V], between them."""

    def score(self, chunk: Chunk) -> tuple[Tensor, Tensor, Tensor]:
        """Score a chunk; see `Head.score`."""
        x = self._multiply(chunk.states)
        self.normalisers, entropies = compiled(score)(x, self.temperature, self.entropy != "none")
        chosen = x[chunk.rows, chunk.targets] / self.temperature
        return chosen - self.normalisers[chunk.rows], self.normalisers, entropies

    def score_again(self, rows: slice, normalisers: Tensor) -> None:
        """Prepare `backward` of a chunk; see `Head.score_again`."""
        self.logits = self._multiply(rows) if self.kept is None else self.kept[rows]
        self.normalisers = normalisers

    def _gradient(
        self, chunk: Chunk, grad_logprobs: Tensor, entropies: Tensor, grad_entropies: Tensor
    ) -> Tensor:
        size = len(entropies)
        grad_states = sum_by(chunk.rows, grad_logprobs, size)
        spread = None
        if self.entropy == "grad":
            spread = (entropies, sum_by(chunk.rows, grad_entropies, size))
        inputs = (self.logits, self.normalisers, grad_states, spread, self.temperature, self.weight.dtype)
        gradient: Tensor = compiled(gradient_of_logits)(*inputs)
        # The few elements that tokens add to are rounded once, as all others are.
        places, place = (chunk.rows * gradient.shape[1] + chunk.targets).unique(return_inverse=True)
        rows = places // gradient.shape[1]
        targets = places % gradient.shape[1]
        logprobs = self.logits[rows, targets] / self.temperature - self.normalisers[rows]
        factor = -grad_states[rows]
        if spread is not None:
            factor = factor - spread[1][rows] * (logprobs + entropies[rows])
        values = logprobs.exp() * factor + sum_by(place, grad_logprobs, len(places))
        return gradient.index_put_((rows, targets), (values / self.temperature).to(gradient.dtype))


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function`; raise an error instead of running uncompiled."""
    made: Callable[..., Any] = torch.compile(function, fullgraph=True, dynamic=True, **GRAPHS)
    return made


def score(x: Tensor, temperature: float, with_entropy: bool) -> tuple[Tensor, Tensor]:
    """Return the log-normalisers [s] and entropies [s] of softmax(x / temperature).

    `x` are logits, [s, V] float32. The entropies are zeros if `with_entropy` is false.
    """
    x = x / temperature
    top = x.amax(1)
    centred = x - top[:, None]
    weights = centred.exp()
    total = weights.sum(1)
    normalisers = top + total.log()
    entropies = total.log() - (weights * centred).sum(1) / total if with_entropy else torch.zeros_like(top)
    return normalisers, entropies


def gradient_of_logits(
    x: Tensor,
    normalisers: Tensor,
    grad_logprobs: Tensor,
    spread: tuple[Tensor, Tensor] | None,
    temperature: float,
    dtype: torch.dtype,
) -> Tensor:
    """Return the gradient of the logits before the division by the temperature, [s, V] in `dtype`.

    The term of each log-prob at its own token's logit is left out. `x` are the logits, [s, V] float32, and
    `grad_logprobs` [s] the sums of the gradients of each state's log-probs. `spread` has the entropies [s]
    and their gradients [s]; None if no gradient reaches them.
    """
    logprobs = x / temperature - normalisers[:, None]
    factor = -grad_logprobs[:, None]
    if spread is not None:
        entropies, grad_entropies = spread
        factor = factor - grad_entropies[:, None] * (logprobs + entropies[:, None])
    return (logprobs.exp() * factor / temperature).to(dtype)
