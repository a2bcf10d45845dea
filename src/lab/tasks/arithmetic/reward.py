"""Verifier that compares a response with a list of correct chains of values."""

from __future__ import annotations

from collections.abc import Sequence

from ....rewards.canonical import Reference, references_of
from ....types import EnumeratingVerifier, Score


class ChainReward(EnumeratingVerifier):
    """Verifier that accepts a response if it equals one of the references, letter by letter.

    This verifier suits the regime `reformulated`, whose references list all solutions.

    >>> reward = ChainReward()
    >>> reward("27 54", ("27 54", "46 54")).correct, reward("27  54", ("27 54",)).correct, reward("54", "27 54").correct
    (True, False, False)
    """

    def __call__(self, response: str, reference: Reference) -> Score:
        """Score one response."""
        return Score(response in references_of(reference), response)

    def correct_responses(self, reference: Reference) -> Sequence[str]:
        """Return the references without duplicates."""
        return sorted({*references_of(reference)})
