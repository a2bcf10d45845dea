"""Multiple-choice questions and questions with free answers under one verifier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..types import Score
from .extraction import Reference, normalize_answer, references_of
from .math import MathReward
from .multiple_choice import MultipleChoiceReward


class MixedReward:
    r"""Judges by `choice` where every reference is a letter of its choices, by `free` elsewhere.

    For evaluation on benchmarks of both kinds. A question with a free answer that happens to be such a letter (in MATH,
    the name of a point or the letter of an option) is judged as a choice: what counts as that letter there, counts here
    too, and besides it `\boxed{(b)}` and `\boxed{B: 42}`.

    Args:
        choice: Judges letters.
        free: Judges everything else.

    >>> with MixedReward(MultipleChoiceReward(), MathReward(workers=1)) as reward:
    ...     [score.correct for score in reward.judge_batch([r"\boxed{B: 4}", r"\boxed{8/2}"], ["B", "4"])]
    [True, True]
    """

    def __init__(self, choice: MultipleChoiceReward, free: MathReward) -> None:
        self.choice = choice
        self.free = free

    @property
    def failures(self) -> Counter[str]:
        """Name → responses without a verdict, all of free answers."""
        return self.free.failures

    def __call__(self, response: str, reference: Reference) -> Score:
        """Judge one response against its reference answers."""
        return self.judge_batch([response], [reference])[0]

    def judge_batch(self, responses: Sequence[str], references: Sequence[Reference]) -> list[Score]:
        """Judge each response against the references in the same place."""
        pairs = list(zip(responses, references, strict=True))
        free = [row for row, (_, reference) in enumerate(pairs) if not self._is_choice(reference)]
        judged = self.free.judge_batch([responses[row] for row in free], [references[row] for row in free])
        scores = dict(zip(free, judged, strict=True))
        return [scores[row] if row in scores else self.choice(*pair) for row, pair in enumerate(pairs)]

    def _is_choice(self, reference: Reference) -> bool:
        letters = {normalize_answer(text) for text in references_of(reference)}
        return letters <= set(self.choice.choices)

    def close(self) -> None:
        """End the workers; the next comparison starts new ones."""
        self.free.close()

    def __enter__(self) -> MixedReward:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
