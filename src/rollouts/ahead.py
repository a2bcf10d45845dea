"""Sampling one batch ahead: while the policy is updated, the engine samples what the next update learns from.

Those responses are one update behind: the weights that sample them are the ones from before it. The module that learns
from them is told so by `Rollouts.staleness`, and corrects for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Trainer

from ..distributed import gather_objects, rank, world_size
from ..types import Completion, Engine, Finish
from .replay import SuccessReplay
from .scoring import Scoring
from .store import packed, unpacked


@dataclass
class Generation:
    """The responses to one batch: to be sampled, being sampled, there, or failed."""

    asked: str
    """Digest of the `Request`."""
    step: int
    """Optimizer steps that the policy which samples them had made."""
    scoring: Scoring | None = None
    """Judges them, perhaps while they are sampled; None where they come from a checkpoint."""
    finish: Finish | None = None
    """Samples them or waits for them; None when they are there or have failed."""
    phase: str = "generate"
    """Name of the seconds that `finish` takes."""
    keep: Callable[[Sequence[Sequence[Completion]]], None] | None = None
    """Called with the responses when they have been sampled."""
    completions: list[list[Completion]] | None = None
    """[P][G_p], once they are there."""
    error: Exception | None = None
    """Why they will never be there."""

    def join(self, seconds: dict[str, float]) -> None:
        """Wait until the responses are there or have failed; only `result` raises. Collective."""
        if self.finish is None:
            return
        try:
            with timed(seconds, self.phase):
                self.completions = self.finish()
        except Exception as error:  # whatever it is: for those who need the responses
            self.error = error
        self.finish = None
        if self.keep is not None and self.completions is not None:
            self.keep(self.completions)

    def result(self, seconds: dict[str, float]) -> list[list[Completion]]:
        """The responses; raises what prevented them. Collective."""
        self.join(seconds)
        if self.error is not None:
            raise self.error
        assert self.completions is not None
        return self.completions

    def state_dict(self) -> dict[str, Any]:
        """The responses of all ranks, in plain containers and tensors; None for a rank that has failed. Collective."""
        self.join({})
        mine = None if self.completions is None else {"asked": self.asked, **packed(self.completions)}
        return {"step": self.step, "ranks": gather_objects(mine)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Generation | None:
        """What this rank had; None when it had nothing, or there are more ranks or fewer now."""
        mine = state["ranks"][rank()] if len(state["ranks"]) == world_size() else None
        return None if mine is None else cls(mine["asked"], state["step"], completions=unpacked(mine))


def check_ahead(make_engine: Callable[[], Engine], replay: SuccessReplay | None) -> None:
    """Refuse what can't be sampled ahead.

    Raises:
        ValueError: the engine can't sample beside an update, as far as its class tells, or the batch is not known
            before it.
    """
    made = getattr(make_engine, "func", make_engine)
    if isinstance(made, type) and getattr(made, "begin", None) is None:
        raise ValueError(
            f"Expected an engine that samples while the policy is updated with rollout.ahead=true, but {made.__name__} "
            "shares the trainer's device or random state. Use rollout=vllm_server, whose servers have devices of their "
            "own, or rollout=transformers, or set rollout.ahead=false."
        )
    if replay is not None:
        raise ValueError(
            "Expected rollout.replay=null with rollout.ahead=true, but got both: which successes are replayed depends "
            "on the policy after the update. Set one of them off."
        )


def another_follows(trainer: Trainer, updates: int) -> bool:
    """Whether another training batch follows the present one, as far as can be told before its update.

    Args:
        trainer: At the start of a training batch.
        updates: Optimizer steps that the batch makes, if none is skipped.
    """
    if 0 <= trainer.max_steps <= trainer.global_step + updates:
        return False
    epochs = trainer.max_epochs
    return not (trainer.is_last_batch and epochs is not None and 0 <= epochs <= trainer.current_epoch + 1)


@contextmanager
def timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Add the wall seconds of the block to `seconds[phase]`."""
    start = time.perf_counter()
    yield
    seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - start
