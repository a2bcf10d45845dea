"""Pools of responses over which advantages are normalised, and sums over these pools."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from ...types import History, RewardGroups

Pool = Literal["question", "prompt", "batch"]
POOLS: tuple[Pool, ...] = get_args(Pool)
"""Pool names: all responses to a question and its rephrasings, to one sampled prompt, or of the batch."""


def pool_index(groups: RewardGroups, group_by: Pool) -> tuple[Tensor, int]:
    """Return the index of each response's pool, [R] long, and the number of pools.

    Indices are 0..num_pools-1, in ascending order of ids. Ids are any integers, in any order; pools may
    differ in size and need not be contiguous.

    >>> ids = torch.tensor([7, -3, 7])
    >>> pool_index(RewardGroups(rewards=ids, correct=ids > 0, question=ids, prompt=ids), "question")
    (tensor([1, 0, 1]), 2)
    """
    if group_by == "batch":
        return torch.zeros_like(groups.question), min(len(groups.question), 1)
    ids, index = torch.unique(getattr(groups, group_by), return_inverse=True)
    return index, len(ids)


def pool_sum(values: Tensor, index: Tensor, num_pools: int) -> Tensor:
    """Return the sum of `values` [R] over each pool, [num_pools] float64."""
    return torch.zeros(num_pools, dtype=torch.float64).index_add_(0, index, values.double())


def pool_size(index: Tensor, num_pools: int) -> Tensor:
    """Return the number of responses in each pool, [num_pools] float64."""
    return torch.bincount(index, minlength=num_pools).double()


def pool_mean(values: Tensor, index: Tensor, num_pools: int) -> Tensor:
    """Return the mean of `values` [R] over each pool, [num_pools] float64."""
    return pool_sum(values, index, num_pools) / pool_size(index, num_pools)


def uniform_pools(rewards: Tensor, index: Tensor, num_pools: int) -> Tensor:
    """Return whether all rewards of each pool are exactly equal, [num_pools] bool."""
    low = rewards.new_full((num_pools,), torch.inf).scatter_reduce_(0, index, rewards, "amin")
    high = rewards.new_full((num_pools,), -torch.inf).scatter_reduce_(0, index, rewards, "amax")
    return low == high


def accuracy(groups: RewardGroups, group_by: Pool) -> Tensor:
    """Return the share of correct responses in each response's pool, c / n, [R] float64."""
    index, num_pools = pool_index(groups, group_by)
    return pool_mean(groups.correct, index, num_pools)[index]


def history_of(groups: RewardGroups) -> History:
    """Return the history of the groups, for strategies that need one.

    Raises:
        ValueError: if the groups have no history.
    """
    if groups.history is None:
        raise ValueError(
            "Expected RewardGroups.history with this advantage strategy, but got none. RolloutCallback "
            "provides for it where the module says `needs_history`; in a script, give RolloutPipeline "
            "memory=QuestionMemory()."
        )
    return groups.history


def as_rewards(advantages: Tensor, groups: RewardGroups) -> Tensor:
    """Convert `advantages` [R] to the dtype of the rewards, but at least to float32.

    Rewards are float32 in training, and float64 if exact sums are computed (`lab`).
    """
    return advantages.to(torch.promote_types(groups.rewards.dtype, torch.float32))


def verdicts(*pools: Sequence[float]) -> RewardGroups:
    """Return groups whose rewards are verdicts, 1 or 0. Each of `pools` has the verdicts on one question."""
    rewards = torch.tensor([value for pool in pools for value in pool], dtype=torch.float32)
    question = torch.arange(len(pools)).repeat_interleave(torch.tensor([len(pool) for pool in pools]))
    return RewardGroups(rewards=rewards, correct=rewards > 0, question=question, prompt=question)


def check_epsilon(epsilon: float) -> None:
    """Raise a ValueError if ε is negative."""
    if epsilon < 0:
        raise ValueError(f"Expected advantage.epsilon to be at least 0, but got {epsilon}.")
