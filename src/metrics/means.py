"""Means that come out the same to the bit however batches and ranks share the values out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import fsum, isnan, nan
from typing import Any

import torch
from torch import Tensor

from .base import RecordMetric
from .functional import exact_parts


class MeanByName(RecordMetric):
    """Mean of all values of each name. NaN is left out, and so are names without any other value.

    >>> metric = MeanByName()
    >>> metric.update({"uniform": torch.tensor([1.0, 0.0]), "length": torch.tensor([12.0, torch.nan])})
    >>> metric.update({"uniform": torch.tensor([0.0, 0.0])})
    >>> metric.compute()
    {'uniform': 0.25, 'length': 12.0}
    """

    def update(self, values: Mapping[str, Tensor]) -> None:
        """Add name → [n] values; a rank may have names that others lack."""
        known = {name: [x for x in column.tolist() if not isnan(x)] for name, column in values.items()}
        self.add({name: (exact_parts(column), len(column)) for name, column in known.items() if column})

    def compute(self) -> dict[str, float]:
        """Name → mean, rounded once."""
        parts: dict[str, list[float]] = {}
        counts: dict[str, int] = {}
        for record in self.records():
            for name, (terms, count) in record.items():
                parts.setdefault(name, []).extend(terms)
                counts[name] = counts.get(name, 0) + count
        return {name: fsum(terms) / counts[name] for name, terms in parts.items()}


class GroupMean(MeanByName):
    """Mean over groups of what a function of `tagrpo.metrics.functional` gives for each of them.

    An update takes whole groups. Groups that have nothing of the kind, for which the function gives NaN, are left out.

    Args:
        function: Returns [num_groups] values from the arguments of `update`.
        kwargs: Options of `torchmetrics.Metric`.

    >>> from tagrpo.metrics.functional import answer_diversity, uniform_groups
    >>> uniform = GroupMean(uniform_groups)  # share of questions whose responses all have the same reward
    >>> uniform.update(torch.tensor([1.0, 1.0, 0.0, 1.0]), torch.tensor([0, 0, 1, 1]))
    >>> uniform.compute()
    tensor(0.5000, dtype=torch.float64)
    >>> wrong = GroupMean(answer_diversity)
    >>> wrong.update(["1", "2", "2", "7"], torch.tensor([False, False, False, True]), torch.tensor([0, 0, 1, 1]))
    >>> wrong.compute()  # group 0 has 1 and 2, group 1 has 2
    tensor(1.5000, dtype=torch.float64)
    """

    def __init__(self, function: Callable[..., Tensor], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.function = function

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add the groups that the arguments of the function describe."""
        super().update({"mean": self.function(*args, **kwargs)})

    def compute(self) -> Tensor:  # type: ignore[override]
        """[] float64 mean; NaN before any value."""
        return torch.tensor(super().compute().get("mean", nan), dtype=torch.float64)
