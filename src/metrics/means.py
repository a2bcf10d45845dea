"""Means that are the same to the bit however the values are spread over batches and ranks."""

import json
from collections.abc import Mapping, Sequence
from math import fsum, isnan
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from ..distributed import gather_objects
from .functional import group_index, pass_at_k


def _gather(state: Tensor, group: Any) -> list[Tensor]:  # noqa: ARG001 (torchmetrics calls it by this name)
    return gather_objects(state)


class MeanByName(Metric):
    """Mean of all values of each name. NaN does not count, and names without other values are left out.

    torchmetrics gathers tensors, therefore values travel as the bytes of their JSON, which keeps all bits of a float.
    `kwargs` are options of `torchmetrics.Metric`.

    >>> metric = MeanByName()
    >>> metric.update({"uniform": torch.tensor([1.0, 0.0]), "length": torch.tensor([12.0, torch.nan])})
    >>> metric.update({"uniform": torch.tensor([0.0, 0.0])})
    >>> metric.compute()
    {'uniform': 0.25, 'length': 12.0}
    """

    full_state_update = False
    text: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"dist_sync_fn": _gather, **kwargs})
        self.set_dtype(torch.uint8)  # the type of the empty tensor that a rank without records sends
        self.add_state("text", [], dist_reduce_fx="cat")

    def update(self, values: Mapping[str, Tensor]) -> None:
        """Add name → [n] values; a rank may have names that others lack."""
        record = {name: [x for x in column.tolist() if not isnan(x)] for name, column in values.items()}
        self.text.append(torch.frombuffer(bytearray(json.dumps(record) + "\n", "utf-8"), dtype=torch.uint8))

    def records(self) -> list[dict[str, list[float]]]:
        """Return name → the values of each update; those of all ranks while synchronised."""
        parts = [self.text] if isinstance(self.text, Tensor) else self.text
        return [json.loads(line) for part in parts for line in part.cpu().numpy().tobytes().splitlines()]

    def compute(self) -> dict[str, float]:
        """Return the mean of each name, from an exact sum, so that batching does not change the mean."""
        values: dict[str, list[float]] = {}
        for record in self.records():
            for name, column in record.items():
                values.setdefault(name, []).extend(column)
        return {name: fsum(column) / len(column) for name, column in values.items() if column}


class PassAtK(MeanByName):
    """Unbiased pass@k as `pass@<k>`, means over questions; each k is at most the samples per question.

    >>> metric = PassAtK(ks=(1, 2))
    >>> metric.update(torch.tensor([True, False, False, False]), torch.tensor([0, 0, 1, 1]))
    >>> metric.compute()
    {'pass@1': 0.25, 'pass@2': 0.5}
    """

    higher_is_better = True

    def __init__(self, ks: Sequence[int] = (1, 2, 4, 8, 16, 32), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ks = tuple(ks)

    def update(self, correct: Tensor, question: Tensor) -> None:  # type: ignore[override]
        """Add [R] bool verdicts of all responses to each question; `question` [R] long."""
        index, count = group_index(question)
        right = torch.bincount(index, weights=correct.double(), minlength=count)
        super().update({f"pass@{k}": pass_at_k(torch.bincount(index), right, k) for k in self.ks})
