"""Rewards and advantages in groups: which groups give a gradient, and why other groups give no gradient."""

import torch
from torch import Tensor

CAUSES = ("all_right", "all_wrong", "truncated", "unpooled", "masked", "clipped", "other")
"""Causes in `zero_gradient_causes`; a question without gradient has exactly one cause."""


def group_index(group: Tensor) -> tuple[Tensor, int]:
    """Return the index of each id among the distinct ids in ascending order, [R] long, and num_groups."""
    ids, index = torch.unique(group, return_inverse=True)
    return index, len(ids)


def uniform_groups(values: Tensor, group: Tensor) -> Tensor:
    """Return whether all values of each group are equal, [num_groups] bool, in ascending order of ids.

    NaN does not equal any value.

    >>> uniform_groups(torch.tensor([1.0, 1.0, 0.0, 1.0]), torch.tensor([0, 0, 1, 1]))
    tensor([ True, False])
    """
    index, count = group_index(group)
    low = values.new_full((count,), torch.inf).scatter_reduce(0, index, values, "amin")
    high = values.new_full((count,), -torch.inf).scatter_reduce(0, index, values, "amax")
    return low == high


def group_std(values: Tensor, group: Tensor) -> Tensor:
    """Return the sample standard deviation of each group, [num_groups] float64; NaN for a single value.

    The divisor is n − 1, as in the scale of GRPO's advantages and in TRL's `reward_std`.

    >>> group_std(torch.tensor([1.0, 0.0, 1.0, 1.0, 3.0]), torch.tensor([0, 0, 1, 1, 2]))
    tensor([0.7071, 0.0000,    nan], dtype=torch.float64)
    """
    index, count = group_index(group)
    numbers = values.double()
    sizes = torch.bincount(index, minlength=count).double()
    means = numbers.new_zeros(count).index_add(0, index, numbers) / sizes
    squares = numbers.new_zeros(count).index_add(0, index, (numbers - means[index]).square())
    return (squares / (sizes - 1)).sqrt().masked_fill(sizes < 2, torch.nan)


def zero_gradient_groups(advantages: Tensor, group: Tensor) -> Tensor:
    """Return whether all advantages of each group are zero, [num_groups] bool, in ascending order of ids.

    >>> zero_gradient_groups(torch.tensor([0.0, 0.0, -1.0, 1.0]), torch.tensor([0, 0, 1, 1]))
    tensor([ True, False])
    """
    index, count = group_index(group)
    return torch.bincount(index[advantages != 0], minlength=count) == 0


def zero_gradient_percentage(advantages: Tensor, group: Tensor) -> Tensor:
    """Return the percentage of groups without gradient, whose advantages are all zero; [] float64.

    >>> zero_gradient_percentage(torch.tensor([0.0, 0.0, -1.0, 1.0]), torch.tensor([0, 0, 1, 1]))
    tensor(50., dtype=torch.float64)
    """
    return 100 * zero_gradient_groups(advantages, group).double().mean()


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
    """Find the groups that contribute nothing to the policy term, by the first cause that applies.

    If all advantages of a group are zero, the cause is one of these:

    - `all_right`: all rewards are equal, and all responses are correct;
    - `truncated`: all rewards are equal, no response is correct, and the length limit ended all responses;
    - `all_wrong`: all rewards are equal, and no response is correct;
    - `unpooled`: rewards are equal within each prompt, but differ between prompts, so that pooling the
      prompts would give a gradient;
    - `other`: advantages are zero although rewards differ (as in Pass@k with fewer than k wrong responses),
      or right and wrong responses have equal rewards.

    If some advantages are not zero, the cause is one of these:

    - `masked`: every response with a nonzero advantage is left out of the loss;
    - `clipped`: every token is clipped in all responses with a nonzero advantage that are in the loss.

    All arguments have one value per response. `advantages` and `rewards` are float, `correct` and `truncated`
    bool. `group` is the id of the question, and `prompt` the id of the sampled prompt; a prompt belongs to
    one question. `masked` is bool, true if the response is left out of the loss. `clipped` is float, the
    share of tokens whose gradient was removed by clipping, NaN if no forward was made. None for `masked` or
    `clipped` stands for zeros.

    Return by cause whether each group has this cause, [num_groups] bool. A group has at most one cause.

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
    zero = advantages == 0
    equal = uniform_groups(rewards.double(), group)
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


def uniform_subset_probability(values: Tensor, group: Tensor, size: Tensor) -> Tensor:
    """Return the exact probability that s random responses of a group are equal, [num_groups] float64.

    The s responses are drawn without replacement.

    For a group of m responses, m_v of which have the value v, the probability is Σ_v C(m_v, s) / C(m, s), or
    NaN if m < s. The probability makes groups of unequal size comparable: 24 responses are less often uniform
    than 8, merely because there are more of them.

    `values` are [R] float, and `group` is [R] long. `size` is [num_groups] long: s of each group, at least 1.

    >>> group = torch.tensor([0, 0, 0, 0])  # of 6 pairs, 3 are of the three ones
    >>> uniform_subset_probability(torch.tensor([1.0, 1.0, 1.0, 0.0]), group, torch.tensor([2])).round(decimals=9)
    tensor([0.5000], dtype=torch.float64)
    """
    index, count = group_index(group)
    kinds, alike = torch.stack([index.double(), values.double()]).unique(dim=1, return_counts=True)
    owner = kinds[0].long()

    def log_choose(n: Tensor, k: Tensor) -> Tensor:
        return torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma((n - k).clamp(min=0) + 1)

    of = size.double()
    n = torch.bincount(index, minlength=count).double()
    share = (log_choose(alike.double(), of[owner]) - log_choose(n, of)[owner]).exp() * (alike >= of[owner])
    return torch.zeros_like(n).index_add(0, owner, share).masked_fill(n < of, torch.nan)


def zero_gradient_probability(success: Tensor, samples: int | Tensor, pooled: bool = True) -> Tensor:
    """Return the exact probability that all rewards of a pool are equal, so that nothing is learned.

    Normalised advantages of such a pool have no gradient.

    For binary rewards and independent responses, the probability is ∏ p_n^{G_n} + ∏ (1 − p_n)^{G_n} over the
    prompts of the pool. It is the expected share of `uniform_groups`.

    Args:
        success: Success rate of each prompt, [P] float.
        samples: Responses per prompt, at least 1: one number, or [P] long.
        pooled: Whether all prompts share one pool (TA-GRPO; the result is [] float64), or each prompt is a
            pool (GRPO; the result is [P] float64).

    Raises:
        ValueError: if a success rate is outside 0..1, or a number of samples below 1.

    >>> zero_gradient_probability(torch.tensor([0.5, 0.0]), 2)  # all four wrong: ¼ · 1
    tensor(0.2500, dtype=torch.float64)
    >>> zero_gradient_probability(torch.tensor([0.5, 0.0]), 2, pooled=False)
    tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    success = success.double()
    samples = torch.as_tensor(samples)
    if not ((success >= 0) & (success <= 1)).all() or (samples < 1).any():
        raise ValueError(
            f"Expected success rates between 0 and 1 and samples from 1, but got {success}, {samples}."
        )
    right = success.pow(samples)
    wrong = (1 - success).pow(samples)
    return right.prod() + wrong.prod() if pooled else right + wrong
