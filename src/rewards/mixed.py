"""Multiple-choice questions and questions with free answers under one verifier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from ..types import Score
from .extraction import Reference, normalize_answer, references_of
from .math import MathReward
from .multiple_choice import MultipleChoiceReward
from .workers import combined


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
        return self.judge_async(responses, references).result()

    def judge_async(self, responses: Sequence[str], references: Sequence[Reference]) -> Future[list[Score]]:
        """`judge_batch` that returns at once, so that workers judge while the engine still samples."""
        pairs = list(zip(responses, references, strict=True))
        choices = [self._is_choice(reference) for reference in references]
        free = [row for row, choice in enumerate(choices) if not choice]
        chosen = {row: self.choice(*pairs[row]) for row, choice in enumerate(choices) if choice}
        judged = self.free.judge_async([responses[row] for row in free], [references[row] for row in free])
        return combined([judged], lambda parts: self._in_order(chosen | dict(zip(free, parts[0], strict=True))))

    @staticmethod
    def _in_order(scores: Mapping[int, Score]) -> list[Score]:
        return [scores[row] for row in range(len(scores))]

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
