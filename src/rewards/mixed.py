"""Multiple-choice questions and questions with free answers under one verifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from ..types import Score, Verifier
from .background import BackgroundVerifier
from .extraction import Reference, normalize_answer, references_of
from .multiple_choice import MultipleChoiceReward
from .workers import combined


class MixedReward(BackgroundVerifier):
    r"""Scores by `choice` where every reference is a letter of its choices, by `free` elsewhere.

    For evaluation on benchmarks of both kinds. A question with a free answer that happens to be such a letter (in MATH,
    the name of a point or the letter of an option) is scored as a choice: whatever counts as that letter by `free` also
    counts here, and so do `\boxed{(b)}` and `\boxed{B: 42}`.

    Args:
        choice: Scores letters.
        free: Scores everything else, in the background.

    >>> from tagrpo.rewards import MathReward
    >>> with MixedReward(MultipleChoiceReward(), MathReward(workers=1)) as reward:
    ...     [score.correct for score in reward.score_batch([r"\boxed{B: 4}", r"\boxed{8/2}"], ["B", "4"])]
    [True, True]
    """

    def __init__(self, choice: MultipleChoiceReward, free: Verifier) -> None:
        self.choice = choice
        self.free = free

    def score_async(self, responses: Sequence[str], references: Sequence[Reference]) -> Future[list[Score]]:
        """`score_batch` that returns at once."""
        pairs = list(zip(responses, references, strict=True))
        choices = [self._is_choice(reference) for reference in references]
        free = [row for row, choice in enumerate(choices) if not choice]
        chosen = {row: self.choice(*pairs[row]) for row, choice in enumerate(choices) if choice}
        scored = self.free.score_async([responses[row] for row in free], [references[row] for row in free])
        return combined([scored], lambda parts: self._in_order(chosen | dict(zip(free, parts[0], strict=True))))

    @staticmethod
    def _in_order(scores: Mapping[int, Score]) -> list[Score]:
        return [scores[row] for row in range(len(scores))]

    def _is_choice(self, reference: Reference) -> bool:
        letters = {normalize_answer(text) for text in references_of(reference)}
        return letters <= set(self.choice.choices)

    def close(self) -> None:
        """End the workers; the next comparison starts new ones."""
        self.free.close()
