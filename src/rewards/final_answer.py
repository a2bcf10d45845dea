"""Exact match of the answer behind a marker, as in GSM8K (`#### 72`) and in the embedded arithmetic task."""

from __future__ import annotations

from ..types import Score, Verifier
from .extraction import Reference, after_marker, canonical_number, references_of


def _canonical(text: str) -> str:
    return canonical_number(text) or text.strip()


class FinalAnswerReward(Verifier):
    """Correct when the rest of the line after the last `marker` is a reference answer.

    Plain numbers are compared by value (see `canonical_number`), anything else letter by letter: `27 apples` is not
    `27`. Fractions and formulas are for `MathReward`.

    >>> reward = FinalAnswerReward()
    >>> reward("12 + 15 = 27 #### 27", "27"), reward("I do not know", "27")
    (Score(correct=True, answer='27', failure=None, steps=()),
     Score(correct=False, answer=None, failure=None, steps=()))
    """

    def __init__(self, marker: str = "####") -> None:
        if not marker:
            raise ValueError("Expected a non-empty `marker`, but got ''.")
        self.marker = marker

    def check_reference(self, reference: Reference) -> None:
        """Refuse references that hold the marker or several lines, as worked solutions do."""
        for text in references_of(reference):
            if self.marker in text or len(text.strip().splitlines()) != 1:
                raise ValueError(
                    f"Expected a final answer on one line, without {self.marker!r}, but got {text[-40:]!r}. Where the "
                    "answers are worked solutions, set the source's worked=true."
                )

    def __call__(self, response: str, reference: Reference) -> Score:
        """Score one response against its reference answers."""
        text = after_marker(response, self.marker)
        answer = None if text is None else _canonical(text)
        return Score(answer in {_canonical(r) for r in references_of(reference)}, answer)
