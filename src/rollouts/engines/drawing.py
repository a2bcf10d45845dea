"""Drawing the next token: temperature, top-k, top-p, and the log-prob of the drawn token."""

from __future__ import annotations

import torch
from torch import Tensor

from ...types import SamplingConfig
from .base import NO_PROBABILITIES

BELOW_1 = 1 - 2**-30
"""A factor that keeps a point from being rounded into the next interval."""


def draw(
    logits: Tensor, sampling: SamplingConfig, generator: torch.Generator, rows: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Draw a token per entry of `rows`; also returns its float32 log-prob at the temperature, before top-p and top-k.

    `rows` [draws] names the row of `logits` [n, V] that each draw is from; None draws once from each. Greedy decoding
    reports log-probs at temperature 1.

    Raises:
        FloatingPointError: a row of `logits` gives no probabilities.
    """
    logits = logits.float()
    if sampling.temperature not in (0, 1):
        logits = logits / sampling.temperature
    logprobs = torch.log_softmax(logits, -1)
    if bool((broken := logprobs[:, 0].isnan()).any()):  # one NaN or infinity makes the whole row NaN
        raise FloatingPointError(NO_PROBABILITIES.format(int(broken.sum()), len(logits)))
    if rows is None:
        rows = torch.arange(len(logits), device=logits.device)
    if sampling.temperature == 0:
        chosen = logits.argmax(-1)[rows]
    else:
        # Inverse transform: row i of `logits` fills the interval from i to i + 1, each token in proportion to its mass.
        mass = _truncated(logprobs, sampling).double().exp().cumsum(-1)
        ends = mass / mass[:, -1:] + torch.arange(len(logits), device=logits.device)[:, None]
        points = torch.rand(len(rows), dtype=torch.float64, device=logits.device, generator=generator) * BELOW_1 + rows
        chosen = torch.searchsorted(ends.flatten(), points, right=True) - rows * logits.shape[1]
    return chosen, logprobs[rows, chosen]


def _truncated(logprobs: Tensor, sampling: SamplingConfig) -> Tensor:
    """Log-probs with −∞ for the tokens that top-k, then top-p, leave out."""
    if 0 < sampling.top_k < logprobs.shape[-1]:
        least = logprobs.topk(sampling.top_k).values[:, -1:]
        logprobs = logprobs.masked_fill(logprobs < least, -torch.inf)
    if sampling.top_p < 1:
        ordered, index = logprobs.softmax(-1).sort(-1, descending=True)
        # A token stays while the mass before it is below top_p: the likeliest one always does.
        outside = ordered.cumsum(-1) - ordered >= sampling.top_p
        logprobs = logprobs.masked_fill(torch.zeros_like(outside).scatter(-1, index, outside), -torch.inf)
    return logprobs
