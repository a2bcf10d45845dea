"""Asynchronous sampling: while the policy is updated, the engine samples what the next update learns from.

Those responses are off-policy by one update: the weights that sample them are the ones from before it. The update is
told so by `Rollouts.staleness`, and corrects for it by truncated importance sampling.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..distributed import gather_objects, max_over_ranks, rank, world_size
from ..types import Completion, Finish, Request, Seconds
from .scoring import Scoring


@dataclass
class Generation:
    """The responses to one batch: to be sampled, being sampled, there, or failed."""

    key: str
    """`request_key` of what is asked."""
    step: int
    """Optimizer steps of the weights that sample."""
    scoring: Scoring | None = None
    """Scores the responses, perhaps while others are sampled; None where they come from a checkpoint."""
    finish: Finish | None = None
    """Samples the responses, or waits for them; None when they are there or have failed."""
    phase: str = "generate"
    """Under which name `finish` counts in the seconds of the iteration."""
    completions: list[list[Completion]] | None = None
    """[P][G_p], once they are there."""
    error: Exception | None = None
    """Why they will never be there."""

    def join(self, seconds: Seconds) -> None:
        """Wait until the responses are there or have failed; only `result` raises. Collective."""
        if self.finish is None:
            return
        try:
            with seconds.measure(self.phase):
                self.completions = self.finish()
        except Exception as error:  # of any kind: it is raised where the responses are needed
            self.error = error
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
    """`generation` if, on every rank, it is of the request with this key; else None. Collective."""
    fits = generation is not None and generation.key == key
    if not max_over_ranks(not fits):
        return generation
    if generation is not None and rank() == 0:
        warnings.warn(
            "Another batch came than the one that was sampled, as data or options have changed: it is sampled anew.",
            stacklevel=2,
        )
    return None


def request_key(request: Request) -> str:
    """A short name for a request: the same for equal ones in every process, another for different ones."""
    content = ([prompt.tolist() for prompt in request.prompts], *request[1:])
    return hashlib.sha256(repr(content).encode()).hexdigest()[:32]


def packed(completions: Sequence[Sequence[Completion]]) -> dict[str, Any]:
    """[P][G] responses as a few tensors; see `unpacked`."""
    flat = [completion for samples in completions for completion in samples]
    return {
        "counts": [len(samples) for samples in completions],
        "lengths": torch.tensor([len(c.token_ids) for c in flat], dtype=torch.long),
        "token_ids": torch.cat([torch.zeros(0, dtype=torch.long), *(c.token_ids for c in flat)]).int(),
        "logprobs": torch.cat([torch.zeros(0), *(c.logprobs for c in flat)]),
        "truncated": torch.tensor([c.truncated for c in flat], dtype=torch.bool),
    }


def unpacked(content: Mapping[str, Any]) -> list[list[Completion]]:
    """[P][G] the responses that `packed` was given."""
    lengths = content["lengths"].tolist()
    parts = zip(
        content["token_ids"].long().split(lengths),
        content["logprobs"].split(lengths),
        content["truncated"].tolist(),
        strict=True,
    )
    # Views of one large tensor would keep all of it alive.
    flat = iter([Completion(token_ids=i.clone(), logprobs=p.clone(), truncated=t) for i, p, t in parts])
    return [[next(flat) for _ in range(count)] for count in content["counts"]]
