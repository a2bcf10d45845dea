"""Verdicts while the engine still samples: each prompt's responses are judged as soon as they are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from torch import Tensor

from ..types import Completion, Score


class EarlyVerdicts:
    """Hands responses to a verifier's workers as an engine delivers them.

    Args:
        judge_async: A verifier's `judge_async`: (responses, references) → future of their scores.
        decode: [n] of [T] long → [n] texts.
        references: [P] reference answers of each prompt.
    """

    def __init__(
        self,
        judge_async: Callable[[Sequence[str], Sequence[Sequence[str]]], Future[list[Score]]],
        decode: Callable[[list[Tensor]], list[str]],
        references: Sequence[Sequence[str]],
    ) -> None:
        self.judge_async = judge_async
        self.decode = decode
        self.references = references
        self.texts: dict[int, list[str]] = {}
        self.futures: dict[int, Future[list[Score]]] = {}

    def deliver(self, prompt: int, completions: list[Completion]) -> None:
        """Submit the responses to one prompt; returns at once."""
        text = self.texts[prompt] = self.decode([completion.token_ids for completion in completions])
        self.futures[prompt] = self.judge_async(text, [self.references[prompt]] * len(completions))

    def verdicts(self, prompt: int) -> tuple[list[str], list[Score]]:
        """Texts of the responses to one prompt and the verdicts on them, in their order; waits for them.

        Empty if none were delivered.
        """
        return (self.texts[prompt], self.futures[prompt].result()) if prompt in self.futures else ([], [])
