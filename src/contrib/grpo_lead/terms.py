"""Reward terms of GRPO-LEAD: the length reward of its first stage, the penalty for loops of its second."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor

from ...types import QuestionGroup, Rollouts


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
        self.alpha, self.wrong, self.group_by, self.weight = alpha, wrong, group_by, weight

    def __call__(self, rollouts: Rollouts, groups: Sequence[QuestionGroup]) -> Tensor:  # noqa: ARG002
        """[R] float32."""
        pool = rollouts.question if self.group_by == "question" else rollouts.prompt
        shaped = length_reward(rollouts.lengths, rollouts.correct, pool, self.alpha, self.wrong)
        return self.weight * (shaped - rollouts.correct.float())


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
        self.penalty, self.wrong = penalty, wrong
        self.max_ngram, self.repeats, self.longest_word = max_ngram, repeats, longest_word

    def __call__(self, rollouts: Rollouts, groups: Sequence[QuestionGroup]) -> Tensor:  # noqa: ARG002
        """[R] float32."""
        responses = zip(rollouts.answers, rollouts.text, strict=True)
        loops = [answer is None and self._loops(text) for answer, text in responses]
        return (self.penalty - self.wrong) * torch.tensor(loops, dtype=torch.float32)

    def _loops(self, text: str) -> bool:
        longest = max(map(len, text.split()), default=0)
        return longest >= self.longest_word or longest_repetition(text, self.max_ngram) >= self.repeats
