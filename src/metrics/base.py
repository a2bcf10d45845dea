"""Base class of the metrics: records that are gathered over ranks in one collective."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from ..distributed import gather_objects


def _gather(state: Tensor, group: Any) -> list[Tensor]:  # noqa: ARG001 (torchmetrics calls it by this name)
    return gather_objects(state)


class RecordMetric(Metric):
    """A metric that accumulates records: whatever JSON can hold, so names and texts as well as numbers.

    torchmetrics gathers tensors, therefore records travel as the bytes of their JSON, which keeps all bits of a float.
    Results must not depend on the order of the records: the ranks' come one after the other.
    """

    full_state_update = False
    text: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"dist_sync_fn": _gather, **kwargs})
        self.set_dtype(torch.uint8)  # the type of the empty tensor that a rank without records sends
        self.add_state("text", [], dist_reduce_fx="cat")

    def add(self, *records: Any) -> None:
        """Append records."""
        text = "".join(json.dumps(record) + "\n" for record in records)
        if text:
            self.text.append(torch.frombuffer(bytearray(text, "utf-8"), dtype=torch.uint8))

    def records(self) -> list[Any]:
        """Everything that was added; by all ranks while the metric is synchronised."""
        parts = [self.text] if isinstance(self.text, Tensor) else self.text
        return [json.loads(line) for part in parts for line in part.cpu().numpy().tobytes().splitlines()]
