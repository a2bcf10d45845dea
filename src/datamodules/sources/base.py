"""What every source of questions promises."""

from __future__ import annotations

from typing import Protocol

from ...types import QuestionGroup


class Source(Protocol):
    """Where questions come from: a file, the hub, or a generator. Knows nothing of templates or tokens."""

    def load(self) -> list[QuestionGroup]:
        """Return all questions, each with its rephrasings and reference answers.

        Promised of every source:

        - ids are unique within the list;
        - `answer` is never empty, and any of its strings is a correct answer;
        - two calls, in one process or in two, return the same questions in the same order, so that ranks
          and resumed runs agree on what row i is.

        Raises:
            ValueError: a row breaks one of these promises; the message names the row.
        """
        ...
