"""The order of callbacks."""

from __future__ import annotations

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import RichProgressBar

from tagrpo.callbacks import (
    Checkpointer,
    PassAtKEvaluator,
    RolloutRecorder,
    ScalarLog,
    Stage,
    ThroughputMonitor,
    ZeroGradientMonitor,
    in_order,
)


class Sampler(Callback):
    """Stands in for the rollout callback."""

    stage = Stage.ROLLOUT


def test_callbacks_are_sorted_by_stage_and_otherwise_stay_as_they_were_given():
    progress, checkpoint, clock, sampler, log = (
        RichProgressBar(), Checkpointer(), ThroughputMonitor(), Sampler(), ScalarLog(),
    )  # fmt: skip
    diagnostics = [RolloutRecorder(), ZeroGradientMonitor(), PassAtKEvaluator()]
    given = [log, diagnostics[0], progress, sampler, *diagnostics[1:], clock, checkpoint]
    assert in_order(given) == [checkpoint, clock, diagnostics[0], progress, *diagnostics[1:], sampler, log]
