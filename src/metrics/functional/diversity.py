"""Diversity of the final answers and of the embedded responses in a group, and majority votes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .groups import group_index


def answer_diversity(answers: Sequence[str | None], correct: Tensor, group: Tensor) -> Tensor:
    """Return the number of distinct wrong answers in each group, [num_groups] long on the CPU.

    This is the answer diversity of Pass@k training (Fig. 7a). Missing answers do not count.

    >>> answer_diversity(["1", "2", "2", "7"], torch.tensor([False, False, False, True]), torch.tensor([0, 0, 0, 0]))
    tensor([2])
    """
    index, count = group_index(group)
    rows = zip(index.tolist(), answers, correct.tolist(), strict=True)
    wrong = {(row, answer) for row, answer, is_correct in rows if not is_correct and answer is not None}
    return torch.bincount(torch.tensor([row for row, _ in wrong], dtype=torch.long), minlength=count)


def answer_entropy(answers: Sequence[str | None], group: Tensor) -> Tensor:
    """Return the entropy of each group's final answers in nats, [num_groups] float64 on the CPU.

    A missing answer counts as an answer.

    The plug-in estimate from n responses is at most log n. On average it is too low by about (m − 1) / 2n if
    m answers are possible.

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


def majority_vote(correct: int, rivals: Sequence[int]) -> float:
    """Return maj@n: 1 if the correct answer wins the vote, 1 / (1 + t) in a tie with t other answers, or 0.

    `correct` is the number of correct responses, which vote together, however they write their answer. Each
    of `rivals` is the number of responses with one wrong answer. Responses without an answer do not vote.

    >>> majority_vote(2, [1, 1]), majority_vote(1, [1, 1]), majority_vote(1, [2]), majority_vote(0, [])
    (1.0, 0.3333333333333333, 0.0, 0.0)
    """
    return float(correct > 0 and correct >= max(rivals, default=0)) / (1 + rivals.count(correct))


def mean_pairwise_distance(embeddings: Tensor, group: Tensor) -> Tensor:
    """Return the mean of 1 − cosine over all pairs in each group, [num_groups] float64 in 0..2.

    The result is NaN for a group of one response. This is the distance in TA-GRPO, Fig. 4.

    The expectation does not depend on the group's size. The cost is linear in the number of responses,
    because Σ_{i≠j} cos = |Σ_i u_i|² − n for unit vectors u. `embeddings` are [R, D] float, vectors of any
    length; a zero vector counts as orthogonal to all others.

    >>> mean_pairwise_distance(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]), torch.tensor([0, 0, 0]))
    tensor([0.6667], dtype=torch.float64)
    """
    index, count = group_index(group)
    unit = torch.nn.functional.normalize(embeddings.double(), dim=-1)
    sums = unit.new_zeros(count, unit.shape[-1]).index_add(0, index, unit)
    own = unit.new_zeros(count).index_add(0, index, unit.square().sum(-1))
    sizes = torch.bincount(index, minlength=count).double()
    cosines = (sums.square().sum(-1) - own) / (sizes * (sizes - 1))
    # Rounding may leave −1e-16 for identical responses.
    return (1 - cosines).clamp(0, 2).masked_fill(sizes < 2, torch.nan)
