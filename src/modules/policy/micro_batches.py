"""Micro-batches within a budget of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def plan_micro_batches(
    prompt_lengths: Tensor, prompt: Tensor, response_lengths: Tensor, token_budget: int, share_prefix: bool = True
) -> list[Tensor]:
    """Cut responses into micro-batches of at most `token_budget` tokens (first-fit decreasing).

    Responses of one prompt stay together where they fit. A prompt with more is encoded again in each of its
    parts. A single response that is over the budget with its prompt gets a micro-batch of its own.

    Args:
        prompt_lengths: [S] long, tokens per distinct prompt.
        prompt: [R] long, row of each response's prompt.
        response_lengths: [R] long, tokens per response.
        token_budget: Distinct prompt tokens plus response tokens. Without sharing: tokens of a padded batch.
        share_prefix: Whether a prompt is encoded once for all its responses.

    >>> lengths, prompt, responses = torch.tensor([4, 4]), torch.tensor([0, 0, 1]), torch.tensor([2, 2, 3])
    >>> [part.tolist() for part in plan_micro_batches(lengths, prompt, responses, 10)]
    [[0, 1], [2]]
    """
    own = response_lengths.tolist()
    heads = prompt_lengths[prompt].tolist()
    if share_prefix:
        groups: dict[int, list[int]] = {}
        for row, shared in enumerate(prompt.tolist()):
            groups.setdefault(shared, []).append(row)
        pieces = [piece for rows in groups.values() for piece in _pieces(rows, heads[rows[0]], own, token_budget)]
        parts = _first_fit_decreasing(pieces, token_budget)
    else:
        parts = _rectangles([head + length for head, length in zip(heads, own, strict=True)], token_budget)
    return [torch.tensor(sorted(rows), dtype=torch.long) for rows in parts]


def _pieces(rows: Sequence[int], head: int, lengths: Sequence[int], budget: int) -> list[tuple[int, list[int]]]:
    """Cut the responses of one prompt of `head` tokens into (tokens, rows) within the budget."""
    pieces: list[tuple[int, list[int]]] = []
    size, piece = head, list[int]()
    for row in rows:
        if piece and size + lengths[row] > budget:
            pieces.append((size, piece))
            size, piece = head, []
        size += lengths[row]
        piece.append(row)
    return [*pieces, (size, piece)]


def _first_fit_decreasing(pieces: Sequence[tuple[int, list[int]]], budget: int) -> list[list[int]]:
    """Put (tokens, rows), largest first, each into the first bin that has room."""
    sizes: list[int] = []
    bins: list[list[int]] = []
    for size, rows in sorted(pieces, key=lambda piece: (-piece[0], piece[1])):
        index = next((index for index, used in enumerate(sizes) if used + size <= budget), len(bins))
        if index == len(bins):
            sizes.append(0)
            bins.append([])
        sizes[index] += size
        bins[index] += rows
    return bins


def _rectangles(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Cut rows, longest first, where the number of rows times the longest would exceed the budget."""
    bins: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        if bins and (len(bins[-1]) + 1) * lengths[bins[-1][0]] <= budget:
            bins[-1].append(row)
        else:
            bins.append([row])
    return bins
