"""Base class for verifiers that score in background workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from ..types import Score, Verifier
from .extraction import Reference


class BackgroundVerifier(Verifier):
    """Scores through `score_async` and `close`, which derived classes define. As a context it ends its workers."""

    in_background = True

    def __call__(self, response: str, reference: Reference) -> Score:
        """Score one response against its reference answers."""
        return self.score_batch([response], [reference])[0]

    def score_batch(self, responses: Sequence[str], references: Sequence[Reference]) -> list[Score]:
        """Score each response against the reference answers in the same place."""
        return self.score_async(responses, references)()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
