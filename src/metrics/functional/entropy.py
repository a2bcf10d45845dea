"""How undecided a policy is: per token, and in its final answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .groups import group_index


def token_entropy(logits: Tensor) -> Tensor:
    """Entropy of the next-token distribution, −Σ p log p.

    Args:
        logits: [..., V] float; −inf for tokens that can't come.

    Returns:
        [...] float32 (float64 for float64 logits), nats, in 0..log V.

    >>> token_entropy(torch.tensor([0.0, 0.0, -torch.inf]))  # log 2
    tensor(0.6931)
    """
    logprobs = torch.log_softmax(logits.float() if logits.dtype != torch.float64 else logits, -1)
    return -torch.special.xlogy(logprobs.exp(), logprobs.exp()).sum(-1)


def sampled_entropy(logprobs: Sequence[Tensor], group: Tensor) -> Tensor:
    """−(Σ log-probs of the sampled tokens) / tokens of each group: without bias for the entropy per token.

    That holds for tokens drawn at temperature 1 without truncation, whose log-probs these are.

    Args:
        logprobs: [R] of [T_r] float, nats.
        group: [R] long.

    Returns:
        [num_groups] float64, in ascending order of group ids.

    >>> sampled_entropy([torch.tensor([-1.0, -2.0]), torch.tensor([-3.0])], torch.tensor([0, 0]))
    tensor([2.], dtype=torch.float64)
    """
    index, count = group_index(group)
    sums = torch.tensor([float(values.double().sum()) for values in logprobs], dtype=torch.float64)
    sizes = torch.tensor([float(len(values)) for values in logprobs], dtype=torch.float64)
    total = torch.zeros(count, dtype=torch.float64).index_add(0, index.cpu(), sums)
    return -total / torch.zeros(count, dtype=torch.float64).index_add(0, index.cpu(), sizes)


def answer_entropy(answers: Sequence[str | None], group: Tensor) -> Tensor:
    """Entropy of the distribution of final answers in each group; a missing answer counts as one answer.

    The plug-in estimate: with n responses at most log n, and too low by about (answers − 1) / 2n.

    Args:
        answers: [R] normalised final answers, None where none was found.
        group: [R] long.

    Returns:
        [num_groups] float64 on the CPU, nats, in ascending order of group ids.

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
