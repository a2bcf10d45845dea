"""Diversity of a group's responses, in final answers and in an encoder's embeddings; majority votes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .groups import group_index


def answer_diversity(answers: Sequence[str | None], correct: Tensor, group: Tensor) -> Tensor:
    """Return [num_groups] long on the CPU, distinct wrong answers (Pass@k training, Fig. 7a).

    Missing answers do not count.

    >>> answer_diversity(["1", "2", "2", "7"], torch.tensor([False, False, False, True]), torch.tensor([0, 0, 0, 0]))
    tensor([2])
    """
    index, count = group_index(group)
    rows = zip(index.tolist(), answers, correct.tolist(), strict=True)
    wrong = {(row, answer) for row, answer, is_correct in rows if not is_correct and answer is not None}
    return torch.bincount(torch.tensor([row for row, _ in wrong], dtype=torch.long), minlength=count)


def answer_entropy(answers: Sequence[str | None], group: Tensor) -> Tensor:
    """Return [num_groups] float64 on the CPU, entropy of the final answers, nats.

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
    """Return maj@n: 1 if the correct answer wins a question's vote, 1 / (1 + t) if it ties with t others.

    Responses judged correct vote together, however they write their answer; those without an answer do not
    vote. `correct` responses have the correct answer, each of `rivals` one of the wrong answers.

    >>> majority_vote(2, [1, 1]), majority_vote(1, [1, 1]), majority_vote(1, [2]), majority_vote(0, [])
    (1.0, 0.3333333333333333, 0.0, 0.0)
    """
    return float(correct > 0 and correct >= max(rivals, default=0)) / (1 + rivals.count(correct))


def mean_pairwise_distance(embeddings: Tensor, group: Tensor) -> Tensor:
    """Return [num_groups] float64 in 0..2, mean of 1 − cosine over all pairs of a group; NaN for one.

    The distance is that of TA-GRPO, Fig. 4.

    The expectation does not depend on the group's size. The cost is linear in the number of responses, as
    Σ_{i≠j} cos = |Σ_i u_i|² − n for unit vectors u. `embeddings`: [R, D] float of any length; a zero vector
    counts as orthogonal to all others.

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
