"""The order of callbacks: each says in which stage of an iteration it belongs."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from lightning.pytorch import Callback


class Stage(IntEnum):
    """Where among the callbacks one belongs, as its class attribute `stage`; one without belongs to `DIAGNOSTIC`."""

    CHECKPOINT = 0
    """Before the others change anything. One of its kind."""
    CLOCK = 1
    """Measures the others. One of its kind."""
    DIAGNOSTIC = 2
    """Reads and logs; any number, in the order in which they were given."""
    ROLLOUT = 3
    """Samples, once the others have prepared the batch. One of its kind."""
    LOG = 4
    """Writes what the others have logged. One of its kind."""


def in_order(callbacks: Iterable[Callback]) -> list[Callback]:
    """Callbacks sorted by their stage, as a `Trainer` must get them.

    Raises:
        ValueError: several callbacks are of a stage that has room for one.
    """
    ordered = sorted(callbacks, key=stage_of)
    for stage in (Stage.CHECKPOINT, Stage.CLOCK, Stage.ROLLOUT, Stage.LOG):
        names = [type(callback).__name__ for callback in ordered if stage_of(callback) is stage]
        if len(names) > 1:
            raise ValueError(
                f"Expected at most one callback of stage {stage.name}, but got {', '.join(names)}. Remove all but one "
                "from `callbacks`."
            )
    return ordered


def stage_of(callback: Callback) -> Stage:
    """The stage that a callback declares; `DIAGNOSTIC` for callbacks of other projects, which declare none."""
    return getattr(callback, "stage", Stage.DIAGNOSTIC)
