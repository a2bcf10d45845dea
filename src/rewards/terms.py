"""Reward terms: what is added to the verdict before advantages are taken. Pass@k never sees them.

A term is a callable `(rollouts, groups) -> [R] float32`. It sees the responses of one rank, which always holds all
responses to a question. Terms are chosen by name; `tagrpo-train --help reward_terms` lists them:

    tagrpo-train experiment=grpo 'reward_terms=[overlong,noise]'

The reward is verdict + Σ terms. Where a method's reward *replaces* the verdict, its term is the difference:
`LengthReward` is GRPO-LEAD's reward minus the verdict, `RewardNoise` is +1 where a wrong response counts as right.
Terms see the verdict and not each other: a wrong response that `RewardNoise` flips keeps the penalty of `LengthReward`
or `SignedReward`.

Terms are stateless, randomness included: the same rollouts earn the same, before and after a resume.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor

from ..types import QuestionGroup, Rollouts
from .format import MARKERS, format_reward


class TemplateFormatTerm:
    """weight · the format reward of the template that each response was sampled in (arXiv 2602.03190: weight 1).

    Args:
        weight: Factor.
        markers: Template name → its markers (`format_reward`), in addition to the 13 of `MARKERS` and before those of
            the same name. No markers mean a constant 1.

    Raises:
        ValueError: a marker is empty, or a response comes from a template that has no format reward.
    """

    def __init__(self, weight: float = 1.0, markers: Mapping[str, Sequence[str]] | None = None) -> None:
        self.weight = weight
        self.markers = {**MARKERS, **(markers or {})}
        if empty := [name for name, texts in self.markers.items() if "" in texts]:
            raise ValueError(
                f"Expected rollout.reward_terms.format.markers that are not empty, but {empty[0]} has one."
            )

    def __call__(self, rollouts: Rollouts, groups: Sequence[QuestionGroup]) -> Tensor:  # noqa: ARG002
        """[R] float32."""
        names = [rollouts.prompts[row].template for row in rollouts.prompt.tolist()]
        if unknown := sorted(set(names) - set(self.markers)):
            raise ValueError(
                f"Expected a format reward for each template, but {', '.join(unknown)} has none; known are "
                f"{', '.join(self.markers)}. Name its markers in rollout.reward_terms.format.markers, [] for none."
            )
        values = [format_reward(text, self.markers[name]) for name, text in zip(names, rollouts.text, strict=True)]
        return self.weight * torch.tensor(values, dtype=torch.float32)


def soft_overlong_penalty(lengths: Tensor, max_length: int, cache: int) -> Tensor:
    """DAPO's soft overlong punishment (arXiv 2503.14476, Eq. 13), [R] float32 for `lengths` [R] in tokens.

    0 up to L_max − L_cache tokens (`max_length` − `cache`), then falling linearly to −1 at L_max, and −1 beyond.

    >>> soft_overlong_penalty(torch.tensor([5, 6, 8, 10, 11]), max_length=10, cache=4)
    tensor([ 0.0000,  0.0000, -0.5000, -1.0000, -1.0000])
    """
    return ((max_length - cache - lengths) / cache).clamp(-1.0, 0.0).float() + 0.0  # no negative zero


class SoftOverlongPenalty:
    """weight · `soft_overlong_penalty` of each response's length.

    Args:
        max_length: L_max, tokens. DAPO's is the length limit of sampling, so that a truncated response gets −1.
        cache: L_cache, tokens. None is a fifth of `max_length`, DAPO's share (4,096 of 20,480).
        weight: Factor.

    Raises:
        ValueError: not 0 < cache ≤ max_length.
    """

    def __init__(self, max_length: int, cache: int | None = None, weight: float = 1.0) -> None:
        cache = max(max_length // 5, 1) if cache is None else cache
        if not 0 < cache <= max_length:
            raise ValueError(f"Expected 0 < cache ≤ max_length, but got cache={cache} and max_length={max_length}.")
        self.max_length = max_length
        self.cache = cache
        self.weight = weight

    def __call__(self, rollouts: Rollouts, groups: Sequence[QuestionGroup]) -> Tensor:  # noqa: ARG002
        """[R] float32."""
        return self.weight * soft_overlong_penalty(rollouts.lengths, self.max_length, self.cache)


class SignedReward:
    """−1 where the response is wrong, else 0, so that the reward is ±1 (DAPO, arXiv 2503.14476, Eq. 7).

    DAPO's overlong penalty is weighed against this scale: a correct response at the length limit earns 0, half way to
    −1. Under rewards of 1 and 0 it would earn as little as a wrong one.
    """

    def __call__(self, rollouts: Rollouts, groups: Sequence[QuestionGroup]) -> Tensor:  # noqa: ARG002
        """[R] float32 of −1 and 0."""
        return -(~rollouts.correct).float()


def longest_repetition(text: str, max_ngram: int = 30) -> int:
    """How often in a row one n-gram of up to `max_ngram` words stands in the text, at most.

    For each n the words are cut into pieces of n from the start, and equal neighbours are counted.

    >>> longest_repetition("so so so so it is"), longest_repetition("wait, no wait, no wait, no")
    (4, 3)
    """
    words = text.split()
    cut = ([words[i : i + n] for i in range(0, len(words) - n + 1, n)] for n in range(1, max_ngram + 1))
    return max((len(list(run)) for pieces in cut for _, run in groupby(pieces)), default=0)


class RepetitionPenalty:
    """`penalty` − `wrong` for responses that end in a loop, which earn `penalty` in all (GRPO-LEAD's second stage).

    As in the authors' code, a response loops if it has no answer and either one n-gram of up to `max_ngram` words
    stands in it at least `repeats` times in a row, or a word of at least `longest_word` characters.

    Args:
        penalty: Reward of such a response (arXiv 2504.09696).
        wrong: What the verdict and the other terms make of a wrong response: −1 with `SignedReward` or `LengthReward`.
        max_ngram, repeats, longest_word: See above; the authors' code.
    """

    def __init__(
        self,
        penalty: float = -1.5,
        wrong: float = -1.0,
        max_ngram: int = 30,
        repeats: int = 10,
        longest_word: int = 120,
    ) -> None:
        self.penalty = penalty
        self.wrong = wrong
        self.max_ngram = max_ngram
        self.repeats = repeats
        self.longest_word = longest_word

    def __call__(self, rollouts: Rollouts, groups: Sequence[QuestionGroup]) -> Tensor:  # noqa: ARG002
        """[R] float32."""
        responses = zip(rollouts.answers, rollouts.text, strict=True)
        loops = [answer is None and self._loops(text) for answer, text in responses]
        return (self.penalty - self.wrong) * torch.tensor(loops, dtype=torch.float32)

    def _loops(self, text: str) -> bool:
        longest = max(map(len, text.split()), default=0)
        return longest >= self.longest_word or longest_repetition(text, self.max_ngram) >= self.repeats


class RewardNoise:
    """Rewards each *wrong* response like a right one with some probability: +1 where that happens, else 0.

    The control experiment of Pass@k training (arXiv 2508.10751, Fig. 6a: 10, 30, 50 %), which shows that exploration is
    more than noise. `correct` stays what it is. The draw is seeded by (seed, questions, response tokens), so that it is
    independent of rank and resume; a batch that repeats another token by token repeats its noise.

    Args:
        probability: Of each wrong response, 0 … 1.
        seed: Of the draws.

    Raises:
        ValueError: the probability is out of its range.
    """

    def __init__(self, probability: float, seed: int = 0) -> None:
        if not 0 <= probability <= 1:
            raise ValueError(f"Expected a probability between 0 and 1, but got {probability}.")
        self.probability = probability
        self.seed = seed

    def __call__(self, rollouts: Rollouts, groups: Sequence[QuestionGroup]) -> Tensor:
        """[R] float32 of 0 and 1."""
        return ((uniform_draws(rollouts, groups, self.seed) < self.probability) & ~rollouts.correct).float()


def uniform_draws(rollouts: Rollouts, groups: Sequence[QuestionGroup], seed: int) -> Tensor:
    """[R] float32 in [0, 1) that depend on the seed, the questions and the response tokens alone."""
    digest = hashlib.blake2b(repr((seed, [group.id for group in groups])).encode(), digest_size=8)
    for ids in rollouts.token_ids:
        digest.update(repr(ids.tolist()).encode())
    generator = torch.Generator().manual_seed(int.from_bytes(digest.digest(), "little") % 2**63)
    return torch.rand(len(rollouts), generator=generator)


def length_reward(
    lengths: Tensor, correct: Tensor, group: Tensor, alpha: float = 0.05, wrong: float = -1.0, epsilon: float = 1e-6
) -> Tensor:
    """GRPO-LEAD's length-dependent accuracy reward with its explicit penalty (arXiv 2504.09696, second-hand).

    R = exp(−α z) where correct, `wrong` elsewhere, with z = (length − μ) / (σ + ε); μ and σ (Bessel's correction, as in
    the authors' code) are those of the *correct* responses of the group. z is 0, and R is 1, where a group has a single
    correct response or correct ones of equal length. The authors' code leaves groups of short responses as they are
    (three shortest under 4,000 tokens on average), which the paper does not mention; not done here.

    `lengths` [R] and ε are in tokens, `correct` is [R] bool, `group` [R] long of any values, R [R] float32. The
    defaults of α, the strength, and `wrong` are the paper's.

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
    """weight · (`length_reward` − verdict), so that at weight 1 the reward *is* GRPO-LEAD's.

    Its difficulty weights are an advantage strategy, `DifficultyWeightedAdvantage`.

    Args:
        alpha: Strength of the preference for short correct responses.
        wrong: Reward of a wrong response.
        group_by: Lengths are compared within the pool of a `question` or within its own `prompt`; the same without
            rephrasings.
        weight: Factor.

    Raises:
        ValueError: `group_by` is unknown.
    """

    def __init__(
        self,
        alpha: float = 0.05,
        wrong: float = -1.0,
        group_by: Literal["question", "prompt"] = "question",
        weight: float = 1.0,
    ) -> None:
        if group_by not in ("question", "prompt"):
            raise ValueError(f"Expected `group_by` to be question or prompt, but got {group_by!r}.")
        self.alpha = alpha
        self.wrong = wrong
        self.group_by = group_by
        self.weight = weight

    def __call__(self, rollouts: Rollouts, groups: Sequence[QuestionGroup]) -> Tensor:  # noqa: ARG002
        """[R] float32."""
        pool = rollouts.question if self.group_by == "question" else rollouts.prompt
        shaped = length_reward(rollouts.lengths, rollouts.correct, pool, self.alpha, self.wrong)
        return self.weight * (shaped - rollouts.correct.float())
