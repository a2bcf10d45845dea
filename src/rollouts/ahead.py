"""Asynchronous sampling: while the policy is updated, the engine samples what the next update learns from.

Those responses are off-policy by one update, which `Rollouts.staleness` tells.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..distributed import gather_objects, max_over_ranks, rank, world_size
from ..types import Completion, Finish, Seconds
from .cache import packed, unpacked
from .scoring import Scoring


@dataclass
class Generation:
    """The responses to one batch: to be sampled, being sampled, there, or failed."""

    key: str
    """Cache key of the `Request`."""
    step: int
    """Optimizer steps of the weights that sample."""
    scoring: Scoring | None = None
    """Scores the responses, perhaps while others are sampled; None where they come from a checkpoint."""
    finish: Finish | None = None
    """Samples the responses, or waits for them; None when they are there or have failed."""
    keep: Callable[[Sequence[Sequence[Completion]]], None] = lambda _: None
    """Called with the responses when they have been sampled."""
    completions: list[list[Completion]] | None = None
    """[P][G_p], once they are there."""
    error: Exception | None = None
    """Why they will never be there."""

    def join(self, seconds: Seconds, phase: str = "generate") -> None:
        """Wait, in `phase` of `seconds`, until responses are there or failed; only `result` raises. Collective."""
        if self.finish is None:
            return
        try:
            with seconds.measure(phase):
                self.completions = self.finish()
        except Exception as error:  # of any kind: it is raised where the responses are needed
            self.error = error
        else:
            self.keep(self.completions)
        self.finish = None

    def result(self, seconds: Seconds) -> list[list[Completion]]:
        """The responses; raises what prevented them. Collective."""
        self.join(seconds)
        if self.error is not None:
            raise self.error
        assert self.completions is not None
        return self.completions

    def state_dict(self) -> dict[str, Any]:
        """The responses of all ranks, in plain containers and tensors; None for a rank that has failed. Collective."""
        self.join(Seconds())
        mine = None if self.completions is None else {"key": self.key, **packed(self.completions)}
        return {"step": self.step, "ranks": gather_objects(mine)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Generation | None:
        """Restore the responses of this rank; None when it had none, or the number of ranks has changed."""
        mine = state["ranks"][rank()] if len(state["ranks"]) == world_size() else None
        return None if mine is None else cls(mine["key"], state["step"], completions=unpacked(mine))


def if_of_request(generation: Generation | None, key: str) -> Generation | None:
    """`generation` if, on every rank, it is of the request with this cache key; else None. Collective."""
    fits = generation is not None and generation.key == key
    if not max_over_ranks(not fits):
        return generation
    if generation is not None and rank() == 0:
        warnings.warn(
            "Another batch came than the one that was sampled, as data or options have changed: it is sampled anew.",
            stacklevel=2,
        )
    return None
