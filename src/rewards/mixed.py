"""Multiple-choice questions and questions with free answers under one verifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..types import Score, Verifier
from .extraction import Reference, normalize_answer, references_of
from .multiple_choice import MultipleChoiceReward
from .workers import BackgroundVerifier


class MixedReward(BackgroundVerifier):
    r"""Scores by `choice` where every reference is a letter of its choices, by `free` elsewhere, in the background.

    For evaluation on benchmarks of both kinds. A free answer that happens to be such a letter (in MATH, the name of a
    point) is scored as a choice: `\boxed{(b)}` and `\boxed{B: 42}` count as well.
    """

    def __init__(self, choice: MultipleChoiceReward, free: Verifier) -> None:
        self.choice = choice
        self.free = free

    def score_async(self, responses: Sequence[str], references: Sequence[Reference]) -> Callable[[], list[Score]]:
        """Score letters and start comparing free answers; returns a function that waits for the scores."""
        pairs = list(zip(responses, references, strict=True))
        scores = {row: self.choice(*pair) for row, pair in enumerate(pairs) if self._is_choice(pair[1])}
        free = [row for row in range(len(pairs)) if row not in scores]
        wait = self.free.score_async([responses[row] for row in free], [references[row] for row in free])

        def finish() -> list[Score]:
            scores.update(zip(free, wait(), strict=True))
            return [scores[row] for row in range(len(pairs))]

        return finish

    def check_reference(self, reference: Reference) -> None:
        """Let `free` check references that are no letters."""
        if not self._is_choice(reference):
            self.free.check_reference(reference)

    def _is_choice(self, reference: Reference) -> bool:
        return {normalize_answer(text) for text in references_of(reference)} <= set(self.choice.choices)

    def close(self) -> None:
        """End the workers; the next comparison starts new ones."""
        self.free.close()
