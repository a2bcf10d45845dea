"""What happens within groups of responses: gradient, diversity, answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def group_index(group: Tensor) -> tuple[Tensor, int]:
    """[R] long index in 0..num_groups-1 of arbitrary group ids, in ascending order of the ids, and their number."""
    ids, index = torch.unique(group, return_inverse=True)
    return index, len(ids)


def uniform_groups(values: Tensor, group: Tensor) -> Tensor:
    """[num_groups] bool: all values of the group are equal, in ascending order of group ids.

    >>> uniform_groups(torch.tensor([1.0, 1.0, 0.0, 1.0]), torch.tensor([0, 0, 1, 1]))
    tensor([ True, False])
    """
    index, count = group_index(group)
    low = values.new_full((count,), torch.inf).scatter_reduce(0, index, values, "amin")
    high = values.new_full((count,), -torch.inf).scatter_reduce(0, index, values, "amax")
    return low == high


def uniform_reward_percentage(rewards: Tensor, group: Tensor) -> Tensor:
    """Share of groups whose rewards are all equal, 0..100 (TA-GRPO, Fig. 3). A single response is uniform.

    Args:
        rewards: [R] float.
        group: [R] long.

    Returns:
        [] float64; NaN without any group.

    >>> uniform_reward_percentage(torch.tensor([1.0, 1.0, 0.0, 1.0]), torch.tensor([0, 0, 1, 1]))
    tensor(50., dtype=torch.float64)
    """
    return 100 * uniform_groups(rewards.float(), group).double().mean()


def zero_gradient_percentage(advantages: Tensor, group: Tensor) -> Tensor:
    """Share of groups whose advantages are all zero, 0..100: those that contribute nothing to the policy term.

    Args:
        advantages: [R] float.
        group: [R] long.

    Returns:
        [] float64; NaN without any group.

    >>> zero_gradient_percentage(torch.tensor([0.0, 0.0, -1.0, 1.0]), torch.tensor([0, 0, 1, 1]))
    tensor(50., dtype=torch.float64)
    """
    index, count = group_index(group)
    largest = advantages.new_zeros(count).scatter_reduce(0, index, advantages.abs(), "amax")
    return 100 * (largest == 0).double().mean()


def mean_pairwise_distance(embeddings: Tensor, group: Tensor) -> Tensor:
    """Mean of 1 − cosine over all pairs within each group (TA-GRPO, Fig. 4); its expectation is free of group size.

    Σ_{i≠j} cos = |Σ_i u_i|² − n for unit vectors u: linear in the number of responses.

    Args:
        embeddings: [R, D] float, any non-zero length.
        group: [R] long.

    Returns:
        [num_groups] float64 in 0..2, in ascending order of group ids; NaN for a single response.

    >>> mean_pairwise_distance(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]), torch.tensor([0, 0, 0]))
    tensor([0.6667], dtype=torch.float64)
    """
    index, count = group_index(group)
    unit = torch.nn.functional.normalize(embeddings.double(), dim=-1)
    sums = unit.new_zeros(count, unit.shape[-1]).index_add(0, index, unit)
    sizes = torch.bincount(index, minlength=count).double()
    cosines = (sums.square().sum(-1) - sizes) / (sizes * (sizes - 1))
    return (1 - cosines).masked_fill(sizes < 2, torch.nan)


def answer_diversity(answers: Sequence[str | None], correct: Tensor, group: Tensor) -> Tensor:
    """Distinct wrong answers per group (Pass@k training, Fig. 7a). A missing answer is no answer.

    Args:
        answers: [R] normalised final answers, None where none was found.
        correct: [R] bool.
        group: [R] long.

    Returns:
        [num_groups] long, in ascending order of group ids.

    >>> answer_diversity(["1", "2", "2", "7"], torch.tensor([False, False, False, True]), torch.tensor([0, 0, 0, 0]))
    tensor([2])
    """
    index, count = group_index(group)
    rows = zip(index.tolist(), answers, correct.tolist(), strict=True)
    wrong = {(row, answer) for row, answer, is_correct in rows if not is_correct and answer is not None}
    return torch.bincount(torch.tensor([row for row, _ in wrong], dtype=torch.long), minlength=count)
