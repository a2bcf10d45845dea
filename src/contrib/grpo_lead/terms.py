"""Reward term of GRPO-LEAD: the length reward of the first stage."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ...types import QuestionGroup, Rollouts
from ...types.checks import check_choice


def length_reward(
    lengths: Tensor,
    correct: Tensor,
    group: Tensor,
    alpha: float = 0.05,
    wrong: float = -1.0,
    epsilon: float = 1e-6,
) -> Tensor:
    """Compute GRPO-LEAD's length-dependent accuracy reward with its penalty (arXiv 2504.09696, second-hand).

    R = exp(−α z) if correct, else `wrong`, with z = (length − μ) / (σ + ε). Here, μ and σ are the mean and
    the standard deviation (with Bessel's correction, as in the authors' code) of the lengths of the group's
    *correct* responses. z is 0, and R is 1, if a group has a single correct response or if its correct
    responses have equal lengths. The authors' code does not change the rewards of a group whose three
    shortest responses have less than 4,000 tokens on average. The paper does not mention this exception, and
    this function does not make it.

    `lengths` [R] and ε are in tokens. `correct` is [R] bool, and `group` is [R] long with any values. The
    result is [R] float32.

    >>> length_reward(torch.tensor([10, 20, 30, 99]), torch.tensor([True, True, True, False]), torch.zeros(4))
    tensor([ 1.0513,  1.0000,  0.9512, -1.0000])
    """
    lengths = lengths.double()
    rewards = torch.full(lengths.shape, wrong, dtype=torch.float64)
    for pool in torch.unique(group):
        rows = (group == pool) & correct
        deviation = lengths[rows] - lengths[rows].mean()
        spread = lengths[rows].std() if rows.sum() > 1 else torch.zeros((), dtype=torch.float64)
        rewards[rows] = (-alpha * deviation / (spread + epsilon)).exp()
    return rewards.float()


class LengthReward:
    """Reward term weight · (`length_reward` − verdict), so that at weight 1 the reward *is* GRPO-LEAD's.

    The difficulty weights of GRPO-LEAD are an advantage strategy, `DifficultyWeightedAdvantage`.

    Args:
        alpha: Strength of the preference for short correct responses.
        wrong: Reward of a wrong response.
        group_by: Lengths are compared among the responses to a `question` and its rephrasings, or among the
            responses to one `prompt`. Without rephrasings, both are the same.
        weight: Factor of the term.
    """

    # Not a dataclass: Hydra would take it for settings, since reward terms are values of a mapping.
    def __init__(
        self,
        alpha: float = 0.05,
        wrong: float = -1.0,
        group_by: Literal["question", "prompt"] = "question",
        weight: float = 1.0,
    ) -> None:
        check_choice("group_by", group_by, ("question", "prompt"), "reward_terms")
        self.alpha, self.wrong, self.group_by, self.weight = alpha, wrong, group_by, weight

    def __call__(self, rollouts: Rollouts, groups: Sequence[QuestionGroup]) -> Tensor:  # noqa: ARG002
        """Return the term of each response, [R] float32."""
        pool = rollouts.question if self.group_by == "question" else rollouts.prompt
        shaped = length_reward(rollouts.lengths, rollouts.correct, pool, self.alpha, self.wrong)
        return self.weight * (shaped - rollouts.correct.float())
