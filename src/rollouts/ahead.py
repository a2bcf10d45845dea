"""Asynchronous sampling: the engine samples the next batches while the policy is updated.

Their responses are off-policy by some updates; `Rollouts.staleness` is the number of optimizer steps.
"""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

from ..distributed import gather_objects, max_over_ranks, rank, world_size
from ..types import Completion, Finish, Request, Seconds
from .engines.base import EngineError
from .responses import packed, request_key, unpacked
from .scoring import Scoring


@dataclass
class Generation:
    """Responses to one of the next batches: being sampled, complete, or failed."""

    key: str
    """`request_key` of the batch's request; empty if the responses were lost (see `from_state`)."""
    step: int
    """Number of optimizer steps that the sampling weights have made."""
    scoring: Scoring | None = None
    """Scoring of the responses, perhaps during sampling; None if the responses come from a checkpoint."""
    finish: Finish | None = None
    """Function that waits for the responses; None once the responses are complete or have failed."""
    completions: list[list[Completion]] | None = None  # [P][G_p], once they are complete
    error: Exception | None = None  # why sampling them failed

    def join(self, seconds: Seconds, phase: str = "generate") -> None:
        """Wait until the responses are complete, or keep the error for `result`. Collective.

        The waiting time is added to `phase` of `seconds`.
        """
        if self.finish is None:
            return
        try:
            with seconds.measure(phase):
                self.completions = self.finish()
        except Exception as error:  # of any kind: it is raised where the responses are needed
            self.error = error
        self.finish = None

    def result(self, seconds: Seconds) -> list[list[Completion]]:
        """Return the responses, or raise the error of sampling. Collective."""
        self.join(seconds)
        if self.error is not None:
            raise self.error
        assert self.completions is not None
        return self.completions

    def state_dict(self) -> dict[str, Any]:
        """Return the responses of all ranks as containers and tensors; None for a failed rank. Collective."""
        self.join(Seconds())
        mine = None if self.completions is None else {"key": self.key, **packed(self.completions)}
        return {"step": self.step, "ranks": gather_objects(mine)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Generation:
        """Restore a generation with this rank's responses.

        The responses are lost if sampling failed on this rank, or if the number of ranks has changed.
        """
        mine = state["ranks"][rank()] if len(state["ranks"]) == world_size() else None
        return (
            cls("", state["step"])
            if mine is None
            else cls(mine["key"], state["step"], completions=unpacked(mine))
        )


class Block:
    """Several batches as one request to the engine, with concatenated prompts and the first batch's seed."""

    def __init__(self, requests: Sequence[Request], scorings: Sequence[Scoring]) -> None:
        self.request = requests[0]._replace(
            prompts=[prompt for request in requests for prompt in request.prompts],
            num_samples=[count for request in requests for count in request.num_samples],
        )
        self.starts = list(accumulate((len(request.prompts) for request in requests), initial=0))
        self.scorings = scorings
        self.finish: Finish | None = None
        self._completions: list[list[Completion]] | None = None

    def deliver(self, prompt: int, completions: list[Completion]) -> None:
        """Pass the responses to one prompt of the request to the scoring of the prompt's batch."""
        number = bisect_right(self.starts, prompt) - 1
        self.scorings[number].deliver(prompt - self.starts[number], completions)

    def part(self, number: int) -> list[list[Completion]]:
        """Return the responses to batch `number`; the first call waits for all batches. Collective."""
        if self._completions is None:
            if self.finish is None:
                raise EngineError(
                    "Expected the responses to several batches, but sampling them failed for the first."
                )
            finish, self.finish = self.finish, None  # to be called once
            self._completions = finish()
        return self._completions[self.starts[number] : self.starts[number + 1]]


class Queue(deque[Generation]):
    """Queue of the next batches' generations, complete or under way, equally many on every rank."""

    def add(self, block: Block, requests: Sequence[Request], step: int) -> None:
        """Add the generations of a block's batches, sampled by the weights after `step` optimizer steps."""
        for number, (request, scoring) in enumerate(zip(requests, block.scorings, strict=True)):
            self.append(Generation(request_key(request), step, scoring, partial(block.part, number)))

    @property
    def under_way(self) -> bool:
        """Whether the engine may be sampling, since the responses to some batch have not been waited for."""
        return any(generation.finish is not None for generation in self)

    def join(self) -> None:
        """Wait until nothing is being sampled. Collective."""
        for generation in self:
            generation.join(Seconds())

    def wait(self, seconds: Seconds) -> None:
        """Wait for the first generation and all others that the same weights sample. Collective.

        The waiting time is added to the phase `wait` of `seconds`.
        """
        for generation in self:
            if generation.step == self[0].step:
                generation.join(seconds, "wait")

    def take(self, request: Request, seconds: Seconds) -> Generation | None:
        """Wait for the first generation and remove it; return None if it is of another request. Collective.

        If the request differs on any rank, every rank drops all generations. If the first generation has
        failed, all generations are dropped too, since they belong to the same block.
        """
        self.wait(seconds)
        generation = self.popleft()
        other = max_over_ranks(generation.key != request_key(request)) > 0
        if other and generation.key and rank() == 0:  # it has no key where the responses were lost
            came = "Another batch came than the one that was sampled, as data or options have changed"
            warnings.warn(f"{came}: it is sampled anew.", stacklevel=2)
        if other:
            self.join()  # the engine is asked again
        if other or generation.error is not None:
            self.clear()
        return None if other else generation

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the states of all generations. Collective."""
        return [generation.state_dict() for generation in self]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Restore the state that `state_dict` returned."""
        self.clear()
        self.extend(map(Generation.from_state, state))
