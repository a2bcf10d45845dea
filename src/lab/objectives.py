"""Exact objective of an advantage strategy: the weight that the strategy gives to each prompt's success rate.

Rewards are 1 and 0, responses are independent, and prompt n of a question's P prompts has the success rate
p_n. At ratio 1, with each response scored under its own prompt, the expected policy gradient is

    E[ 1/(P·G) Σ_n Σ_g A_{n,g} ∇ log π(o_{n,g}|q_n) ] = Σ_n w_n ∇p_n,
    w_n = (E[A | correct at n] − E[A | wrong at n]) / P,

because π ∇ log π, summed over the correct responses to a prompt, is ∇p_n, and summed over the wrong
responses, it is −∇p_n. Both expectations are sums over the number of correct responses to each prompt.
Theory: arXiv 2510.23049.
"""

from itertools import combinations_with_replacement
from math import comb, factorial, prod, sqrt
from typing import NamedTuple

import torch
from scipy.stats import binom
from torch import Tensor

from ..modules.advantages import PassAtKAdvantage
from ..modules.advantages.based import BasedAdvantage
from ..modules.advantages.pools import as_rewards, pool_index, pool_size, pool_sum
from ..types import AdvantageStrategy, RewardGroups

MAX_RESPONSES = 2**26
"""Largest number of responses over all configurations of counts; this number takes about ten seconds."""
CHUNK = 2**20
"""Number of responses per call of a strategy."""


class ByVerdict(NamedTuple):
    """Advantage of a correct response and of a wrong response to each of P prompts, both […, P] float64."""

    correct: Tensor
    wrong: Tensor


def expected_weights(strategy: AdvantageStrategy, success: Tensor, samples: int | Tensor) -> Tensor:
    """Return w_n = (E[A | correct at n] − E[A | wrong at n]) / P, the weight of ∇p_n in the expected gradient.

    The P prompts are those of one question, or of the whole batch if the strategy reads other questions too.
    With unequal samples, the expected gradient of a mean over all responses is Σ_n (P · G_n / Σ G) w_n ∇p_n.
    For strategies with random groups, the result is the expectation over the groups.

    Args:
        strategy: Strategy that reads rewards alone.
        success: Success rates, [P] float, 0..1; at 0 and 1, the result is the limit.
        samples: Responses per prompt, G: one number, or [P] long.

    Returns:
        Weight of each prompt, [P] float64.

    Raises:
        ValueError: if the strategy reads more than rewards, or makes random choices without `expected`; if
            `success` or `samples` is out of range; or if there would be more than `MAX_RESPONSES` responses.

    >>> from tagrpo.modules.advantages import GroupAdvantage
    >>> expected_weights(GroupAdvantage("prompt", scale="none"), torch.tensor([0.3, 0.6]), 4)  # (1 − 1/4) / 2
    tensor([0.3750, 0.3750], dtype=torch.float64)
    >>> # Pooled, one sample each: A = ±½ where the two differ. First right: ½ · ½; first wrong: −½ · ½; over P = 2.
    >>> expected_weights(GroupAdvantage("question", scale="none"), torch.tensor([0.9, 0.5]), 1)
    tensor([0.2500, 0.2500], dtype=torch.float64)
    """
    given = expected_advantages(strategy, success, samples)
    return (given.correct - given.wrong) / len(given.correct)


def expected_advantages(strategy: AdvantageStrategy, success: Tensor, samples: int | Tensor) -> ByVerdict:
    """Return E[A | correct] and E[A | wrong] for a response to each prompt, [P] float64 each.

    Arguments and errors are those of `expected_weights`.

    >>> from tagrpo.modules.advantages import GroupAdvantage
    >>> expected_advantages(GroupAdvantage(scale="none"), torch.tensor([0.5]), 2)  # r − r̄ is ±½ or 0, half the time
    ByVerdict(correct=tensor([0.2500], dtype=torch.float64), wrong=tensor([-0.2500], dtype=torch.float64))
    """
    success, samples = torch.as_tensor(success, dtype=torch.float64), torch.as_tensor(samples)
    if success.ndim != 1 or not len(success) or not ((success >= 0) & (success <= 1)).all():
        raise ValueError(f"Expected `success` to be [P] rates between 0 and 1, but got {success}.")
    if samples.is_floating_point() or samples.shape not in ((), success.shape) or (samples < 1).any():
        raise ValueError(
            f"Expected `samples` to be a whole number from 1, or {len(success)} of them: got {samples}."
        )
    samples = samples.long().expand(len(success))
    _, kind = torch.stack([success, samples.double()]).unique(dim=1, return_inverse=True)
    counts, orders = _configurations(kind, samples)
    advantages = _advantages_of_counts(strategy, counts, samples)
    chance = _binomial(counts, samples, success)
    others = torch.stack([chance[:, torch.arange(len(kind)) != n].prod(1) for n in range(len(kind))], 1)
    # One response to prompt n is given, its others are G − 1 draws.
    correct = others * _binomial(counts - 1, samples - 1, success) * advantages.correct
    wrong = others * _binomial(counts, samples - 1, success) * advantages.wrong
    # Counts of prompts of one kind were enumerated in sorted order only: average over these prompts.
    same = (kind[:, None] == kind).double()
    return ByVerdict(*(orders @ values @ (same / same.sum(0)) for values in (correct, wrong)))


def count_utility(strategy: AdvantageStrategy, num_samples: int) -> Tensor:
    """Return the utility H(c) of c correct responses in a pool, for c from 0, [num_samples + 1] float64.

    The strategy maximises E[H(C)] / num_samples, where C is the number of correct responses. H(0) = 0 and
    H(c + 1) − H(c) = A⁺(c + 1) − A⁻(c), where A⁺(c) and A⁻(c) are the advantages of a correct and of a wrong
    response if c responses are correct. The gradient of E[H(C)] in a prompt's success rate is the prompt's
    number of samples times E[A | correct] − E[A | wrong], whatever the success rates of the prompts in the
    pool.

    The strategy must read rewards alone and pool all responses to a question.

    >>> from tagrpo.modules.advantages import GroupAdvantage
    >>> count_utility(GroupAdvantage(baseline="none", scale="none"), 3)  # the number of correct responses
    tensor([0., 1., 2., 3.], dtype=torch.float64)
    """
    counts = torch.arange(num_samples + 1)[:, None]
    advantages = _advantages_of_counts(strategy, counts, torch.tensor([num_samples]))
    return torch.cat([torch.zeros(1), (advantages.correct[1:, 0] - advantages.wrong[:-1, 0]).cumsum(0)])


def _advantages_of_counts(strategy: AdvantageStrategy, counts: Tensor, samples: Tensor) -> ByVerdict:
    """Return the advantages if `counts` [M, P] of each prompt's responses are correct, [M, P] each.

    If there is no correct (or no wrong) response to a prompt, the advantage of a correct (wrong) response is
    0.

    A call of the strategy has many configurations, each as a separate question. If a trial with 16
    configurations shows that the strategy reads other questions too, a call has one configuration.
    """
    probes = counts[torch.linspace(0, len(counts) - 1, min(16, len(counts))).long()]
    alone = torch.cat([_advantages(strategy, row[None], samples) for row in probes])
    together = _advantages(strategy, probes, samples)
    size = max(CHUNK // int(samples.sum()), 1) if torch.allclose(alone, together, rtol=1e-6, atol=1e-9) else 1
    advantages = torch.cat([_advantages(strategy, part, samples) for part in counts.split(size)])
    last, prompt = samples.cumsum(0) - 1, torch.arange(len(samples)).repeat_interleave(samples)
    correct = advantages[:, last - samples + 1].where(counts > 0, 0.0)
    wrong = advantages[:, last].where(counts < samples, 0.0)
    by_verdict = torch.where(_verdicts(counts, samples), correct[:, prompt], wrong[:, prompt])
    if not torch.allclose(advantages, by_verdict, rtol=1e-5, atol=1e-9):
        raise ValueError(
            f"Expected equal advantages for equal rewards of one prompt, but {type(strategy).__name__} tells "
            "them apart: it makes random choices and has no `expected` that averages over them. Give it one."
        )
    return ByVerdict(correct, wrong)


def _advantages(strategy: AdvantageStrategy, counts: Tensor, samples: Tensor) -> Tensor:
    """Return the advantages of all responses, [M, R] float64, with the responses to a prompt side by side."""
    correct = _verdicts(counts, samples)
    groups = RewardGroups(
        rewards=correct.flatten().double(),
        correct=correct.flatten(),
        question=torch.arange(len(counts)).repeat_interleave(correct.shape[1]),
        prompt=torch.arange(counts.numel()).view_as(counts).repeat_interleave(samples, 1).flatten(),
    )
    try:
        return averaged(strategy, groups).double().view_as(correct)
    except (AttributeError, TypeError, ValueError) as error:
        name = type(strategy).__name__
        raise ValueError(
            f"Expected a strategy that reads rewards alone, but {name} needs more: {error}"
        ) from error


def _verdicts(counts: Tensor, samples: Tensor) -> Tensor:
    """Return verdicts by which the first `counts` responses to each prompt are correct, [M, R] bool."""
    return torch.cat([torch.arange(g) for g in samples]) < counts.repeat_interleave(samples, 1)


def _configurations(kind: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
    """Return all counts of correct responses, [M, P] long, and the number of orders of each, [M] float64.

    Prompts of the same kind are interchangeable: only the order with ascending counts is returned.
    """
    members = [(kind == value).nonzero()[:, 0] for value in range(int(kind.max()) + 1)]
    sizes = [comb(int(samples[places[0]]) + len(places), len(places)) for places in members]
    total, responses = prod(sizes), int(samples.sum())
    if total * responses > MAX_RESPONSES:
        raise ValueError(
            f"Expected at most {MAX_RESPONSES:,} responses over all configurations of counts, but prompts "
            f"with {samples.tolist()} samples have {total:,} configurations of {responses} responses. Lower "
            "samples, or give prompts the same samples and success rate: those are interchangeable."
        )
    row, counts, orders = torch.arange(total), samples.expand(total, -1).clone(), torch.ones(total).double()
    for places, size in zip(members, sizes, strict=True):
        table = torch.tensor(
            list(combinations_with_replacement(range(int(samples[places[0]]) + 1), len(places)))
        )
        # The r-th of equal counts divides by r: len! / Π (how often each count occurs)!.
        repeated = (table[:, :, None] == table[:, None, :]).tril().sum(2).prod(1)
        counts[:, places] = table[row % size]
        orders *= (factorial(len(places)) / repeated.double())[row % size]
        row = row // size
    return counts, orders


def _binomial(counts: Tensor, draws: Tensor, success: Tensor) -> Tensor:
    """Return the probability of each count, [M, P] float64; 0 for counts outside 0..draws."""
    return torch.from_numpy(binom.pmf(counts.numpy(), draws.numpy(), success.numpy()))


def averaged(strategy: AdvantageStrategy, groups: RewardGroups) -> Tensor:
    """Return the advantages, [R], averaged over the strategy's random choices, if any.

    A strategy with random choices needs a method `expected`, which is called with the groups. For a
    `BasedAdvantage`, the strategy's change is applied to the average of its base. This is exact if the change
    is linear in the advantages.
    """
    if hasattr(strategy, "expected"):
        found: Tensor = strategy.expected(groups)
        return found
    if isinstance(strategy, BasedAdvantage):
        return as_rewards(strategy.changed(averaged(strategy.base, strategy.shaped(groups)), groups), groups)
    if not isinstance(strategy, PassAtKAdvantage) or strategy.estimator == "analytic":
        return strategy(groups)
    index, num_pools = pool_index(groups, strategy.group_by)
    n, c = pool_size(index, num_pools), pool_sum(groups.correct, index, num_pools)
    pools = list(zip(n.int().tolist(), c.int().tolist(), strict=True))
    of_kind = {pool: _of_pool(strategy, *pool) for pool in set(pools)}
    right = torch.tensor([of_kind[pool] for pool in pools], dtype=torch.float64)
    # the advantages of a pool sum to zero, since those of its groups do
    wrong = -right * c / (n - c).clamp(min=1)
    return as_rewards(torch.where(groups.correct, right[index], wrong[index]), groups)


def _of_pool(strategy: PassAtKAdvantage, n: int, c: int) -> float:
    """Return A⁺, the advantage of a correct response, in a pool with c correct responses among n."""
    if not 0 < c < n or n <= strategy.k:
        return 0.0
    if strategy.estimator == "full":
        return full_expectation(n, c, strategy.k, strategy.epsilon)
    return bootstrap_expectation(n, c, strategy.k, strategy.num_groups or n, strategy.epsilon)


def bootstrap_expectation(n: int, c: int, k: int, num_groups: int, epsilon: float) -> float:
    """Return A⁺, the advantage of a correct response averaged over the random groups of `bootstrap`.

    Each of B groups succeeds independently with probability u = 1 − C(n−c, k) / C(n, k), and a successful
    group has k·c / (n·u) correct responses on average. Therefore A⁺ = Σ_s Bin(s; B, u) · s / (B·u) · v(s),
    where v(s) = (1 − s/B) / (σ + ε) is the advantage of a successful group if s of B groups are successful,
    and σ = √(s/B · (1 − s/B)).

    >>> round(bootstrap_expectation(4, 1, 2, 2, 0.0), 12)  # u = ½; one success of two has probability ½ and v = 1
    0.5
    """
    success = 1 - comb(n - c, k) / comb(n, k)
    chance = binom.pmf(range(num_groups), num_groups, success).tolist()
    values = (chance[s] * s * successful_group(s, num_groups, epsilon) for s in range(1, num_groups))
    return float(sum(values) / (num_groups * success))


def full_expectation(n: int, c: int, k: int, epsilon: float) -> float:
    """Return A⁺, the advantage of a correct response averaged over the random disjoint groups of `full`.

    There are C(n, c) ways to place the correct responses. In C(m, s) · N(s, j) · C(n − m·k, c − j) of them,
    exactly s of the m = ⌊n/k⌋ groups are successful and have j correct responses. N(s, j) is the coefficient
    of x^j in ((1+x)^k − 1)^s.

    >>> full_expectation(4, 1, 2, 0.0)  # one of two groups always succeeds: v = 1
    1.0
    """
    groups = n // k
    rest, ways, total = n - groups * k, [1], 0.0
    for s in range(1, groups):
        ways = [
            sum(ways[j - i] * comb(k, i) for i in range(1, k + 1) if 0 <= j - i < len(ways))
            for j in range(len(ways) + k)
        ]
        correct = sum(j * count * comb(rest, c - j) for j, count in enumerate(ways) if j <= c)
        total += comb(groups, s) * correct / (comb(n, c) * c) * successful_group(s, groups, epsilon)
    return total


def successful_group(s: int, num_groups: int, epsilon: float) -> float:
    """Return the advantage of a successful group if `s` of `num_groups` groups are successful.

    A group is successful if it has a correct response. `s` is above 0 and below `num_groups`.
    """
    share = s / num_groups
    return (1 - share) / (sqrt(share * (1 - share)) + epsilon)
