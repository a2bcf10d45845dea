"""Diversity of the final answers of a group, and whether the majority is right."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import comb

import numpy as np
import torch
from torch import Tensor

from .groups import group_index


def answer_diversity(answers: Sequence[str | None], correct: Tensor, group: Tensor) -> Tensor:
    """[num_groups] long on the CPU, distinct wrong answers (Pass@k training, Fig. 7a); a missing one does not count.

    >>> answer_diversity(["1", "2", "2", "7"], torch.tensor([False, False, False, True]), torch.tensor([0, 0, 0, 0]))
    tensor([2])
    """
    index, count = group_index(group)
    rows = zip(index.tolist(), answers, correct.tolist(), strict=True)
    wrong = {(row, answer) for row, answer, is_correct in rows if not is_correct and answer is not None}
    return torch.bincount(torch.tensor([row for row, _ in wrong], dtype=torch.long), minlength=count)


def answer_entropy(answers: Sequence[str | None], group: Tensor) -> Tensor:
    """[num_groups] float64 on the CPU, entropy of the final answers in nats; a missing answer counts as one.

    The plug-in estimate: with n responses at most log n, and too low by about (answers − 1) / 2n.

    >>> answer_entropy(["1", "2", "1", "1"], torch.tensor([0, 0, 1, 1]))  # log 2, and 0
    tensor([0.6931, 0.0000], dtype=torch.float64)
    """
    index, count = group_index(group.cpu())
    codes: dict[tuple[int, str | None], int] = {}
    cells = [codes.setdefault(cell, len(codes)) for cell in zip(index.tolist(), answers, strict=True)]
    owner = torch.tensor([row for row, _ in codes], dtype=torch.long)
    votes = torch.bincount(torch.tensor(cells, dtype=torch.long), minlength=len(codes)).double()
    share = votes / torch.bincount(index, minlength=count)[owner]
    return torch.zeros(count, dtype=torch.float64).index_add(0, owner, -torch.special.xlogy(share, share))


@lru_cache(maxsize=65536)
def majority_probability(correct: int, rivals: tuple[int, ...], silent: int, k: int) -> float:
    """Exact probability that the correct answer wins a vote of k of n samples: maj@k.

    The mean, over all C(n, k) subsets, of whether the most frequent answer is correct. Responses judged correct vote
    together, however they write their answer; a response without an answer is one of the k, but does not vote; a subset
    where t wrong answers have as many votes as the correct one counts 1 / (1 + t). At k = 1 this is the accuracy, at
    k = n the majority vote of all samples.

    Sums over the votes v that the correct answer gets: C(correct, v) times the ways to draw the other k − v with no
    rival above v. All terms are positive, so that float64 loses nothing; the cost grows with n · k² · log k.

    `correct` samples have the correct answer, each of `rivals` a wrong one, and `silent` none. Raises a ValueError for
    a k outside 1 … n.

    >>> majority_probability(1, (1, 1), 0, 3)  # a three-way tie
    0.3333333333333333
    """
    n = correct + sum(rivals) + silent
    if not 1 <= k <= n:
        raise ValueError(f"Expected 1 ≤ k ≤ num_samples, but got k={k} with {n} samples. Draw more samples.")
    if not correct:
        return 0.0
    if not rivals:  # nobody to lose to: one correct sample is enough
        return 1 - comb(silent, k) / comb(n, k)
    if k == n:
        level = sum(rival == correct for rival in rivals)
        return float(correct >= max(rivals)) / (1 + level)
    wins = 0.0
    for votes in range(1, min(correct, k) + 1):
        ways = _ways_to_draw_the_rest(rivals, silent, k - votes, votes)
        ties = np.arange(len(ways))
        wins += comb(correct, votes) * float((ways / (1 + ties)).sum())
    return min(wins / comb(n, k), 1.0)


def _ways_to_draw_the_rest(rivals: tuple[int, ...], silent: int, size: int, votes: int) -> np.ndarray:
    """[ties] ways to draw `size` samples from the rivals and the silent, no rival above `votes` and so many at it."""
    silent += sum(rival for rival in rivals if rival < votes)  # they cannot win, however many of them are drawn
    ways = np.zeros((size // votes + 1, size + 1))  # [rivals at `votes`, samples drawn]
    ways[0] = [comb(silent, drawn) for drawn in range(size + 1)]
    for rival in rivals:
        if rival < votes:
            continue
        after = ways.copy()
        for taken in range(1, min(votes - 1, size) + 1):
            after[:, taken:] += comb(rival, taken) * ways[:, : size + 1 - taken]
        if votes <= size:
            after[1:, votes:] += comb(rival, votes) * ways[:-1, : size + 1 - votes]
        ways = after
    return ways[:, size]
