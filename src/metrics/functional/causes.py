"""Why a question gives no gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from .groups import group_index, uniform_groups

CAUSES = ("all_right", "all_wrong", "truncated", "unpooled", "masked", "clipped", "other")
"""The values of `zero_gradient_causes`; a question without gradient has exactly one of them."""


def zero_gradient_causes(
    advantages: Tensor,
    rewards: Tensor,
    correct: Tensor,
    truncated: Tensor,
    group: Tensor,
    prompt: Tensor,
    *,
    masked: Tensor | None = None,
    clipped: Tensor | None = None,
) -> dict[str, Tensor]:
    """Which groups contribute nothing to the policy term, split by the first cause that holds.

    - `all_right`: all rewards are equal, and all responses correct;
    - `all_wrong`: all rewards are equal, and none is correct; `truncated`, when the length limit ended all of them;
    - `unpooled`: rewards differ, but only between prompts whose own are equal, and all advantages are zero: pooling the
      prompts would rescue it;
    - `masked`: every response with an advantage is left out of the loss;
    - `clipped`: those that are not left out have all of their tokens clipped;
    - `other`: zeros where rewards differ (Pass@k with fewer than k wrong responses, say), or equal rewards for right
      and wrong responses.

    Per response: float `advantages` and `rewards`; bool `correct`, `truncated`, and `masked`, left out of the loss; ids
    of its question, `group`, and of its sampled `prompt`, which belongs to one question; float `clipped`, the share of
    its tokens whose gradient clipping removed, NaN where no forward was made. None stands for zeros.

    Returns cause → [num_groups] bool; no two hold for one group.

    >>> rewards = torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0, 0.0])
    >>> advantages, group = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, -1.0]), torch.tensor([0, 0, 1, 1, 2, 2])
    >>> causes = zero_gradient_causes(advantages, rewards, rewards > 0, torch.zeros(6).bool(), group, group)
    >>> [name for name, flags in causes.items() if flags.any()]
    ['all_right', 'all_wrong']
    """
    index, count = group_index(group)

    def every(flags: Tensor) -> Tensor:
        return torch.bincount(index[~flags], minlength=count) == 0

    left_out = torch.zeros_like(correct) if masked is None else masked
    silenced = torch.zeros_like(correct) if clipped is None else clipped >= 1
    zero, equal = advantages == 0, uniform_groups(rewards.double(), group)
    uniform_prompt = uniform_groups(rewards.double(), prompt)[group_index(prompt)[0]]
    conditions = {
        "all_right": every(zero) & equal & every(correct),
        "truncated": every(zero) & equal & every(~correct) & every(truncated),
        "all_wrong": every(zero) & equal & every(~correct),
        "unpooled": every(zero) & ~equal & every(uniform_prompt),
        "other": every(zero),
        "masked": every(zero | left_out),
        "clipped": every(zero | left_out | silenced),
    }
    holds = torch.stack(list(conditions.values()))
    first = dict(zip(conditions, holds & (holds.cumsum(0) == 1), strict=True))
    return {name: first[name] for name in CAUSES}
