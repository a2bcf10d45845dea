"""The order of callbacks: each says in which stage of an iteration it belongs."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from lightning.pytorch import Callback


class Stage(IntEnum):
    """A callback's place among the others, which it declares as its class attribute `stage`."""

    CHECKPOINT = 0  # before the others change anything
    CLOCK = 1  # measures the others
    DIAGNOSTIC = 2  # reads and logs, in the order in which they were given; for callbacks that declare no stage
    ROLLOUT = 3  # samples, once the others have prepared the batch
    LOG = 4  # writes what the others have logged


def in_order(callbacks: Iterable[Callback]) -> list[Callback]:
    """Callbacks sorted by their stage, as a `Trainer` must get them."""
    return sorted(callbacks, key=lambda callback: getattr(callback, "stage", Stage.DIAGNOSTIC))
