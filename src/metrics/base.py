"""What the classes share: sums that come out the same however batches and ranks split the data."""

from __future__ import annotations

from math import fsum
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from .functional import exact_parts


class ListMetric(Metric):
    """A metric whose list states are all float64, so that a rank without data joins in the gathering."""

    full_state_update = False

    def __init__(self, *states: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.set_dtype(torch.float64)  # what torchmetrics sends for a list that has stayed empty
        for name in states:
            self.add_state(name, [], dist_reduce_fx="cat")

    def column(self, name: str) -> Tensor:
        """[n] float64, everything that was added to a state."""
        state = getattr(self, name)
        return dim_zero_cat(state) if isinstance(state, Tensor) or len(state) else torch.zeros(0, dtype=torch.float64)

    def add(self, **values: Tensor) -> None:
        """Append [n] values to the states of these names."""
        for name, tensor in values.items():
            getattr(self, name).append(tensor.detach().double().to(self.device))


class ExactMean(ListMetric):
    """A mean, rounded once: the same in every order, so with any number of ranks. Subclasses call `add_values`.

    Values that are NaN are left out, as are those of groups that have nothing of the kind.
    """

    parts: list[Tensor]
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("parts", **kwargs)
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def add_values(self, values: Tensor) -> None:
        """Add [n] values."""
        known = values.detach().double().flatten()
        known = known[~known.isnan()]
        self.add(parts=torch.tensor(exact_parts(known.tolist()), dtype=torch.float64))
        self.count += len(known)

    def compute(self) -> Tensor:
        """[] float64 mean; NaN before any value."""
        total = torch.tensor(fsum(self.column("parts").tolist()), dtype=torch.float64)
        return total / self.count.cpu()
