"""Means that are the same to the bit however the values are spread over batches and ranks."""

from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from ..distributed import gather_objects
from .functional import group_index, mean_pairwise_distance, pass_at_k, zero_gradient_groups


class MeanByName(Metric):
    """Mean of all values of each name. NaN does not count, and names that have only NaN are left out.

    Args:
        names: Names of all values that any rank may have; the same on every rank.
        kwargs: Options of `torchmetrics.Metric`.

    >>> metric = MeanByName(["uniform", "length"])
    >>> metric.update({"uniform": torch.tensor([1.0, 0.0]), "length": torch.tensor([12.0, torch.nan])})
    >>> metric.update({"uniform": torch.tensor([0.0, 0.0])})
    >>> metric.compute()
    {'uniform': 0.25, 'length': 12.0}
    """

    full_state_update = False
    rows: list[Tensor]
    """A tensor [n, names] float64 for each update, with NaN after the last value of a name.

    While synchronised, a single tensor with all rows.
    """

    def __init__(self, names: Iterable[str], **kwargs: Any) -> None:
        super().__init__(**{"dist_sync_fn": gather_objects, **kwargs})
        self.names = tuple(names)
        self.add_state("rows", [], dist_reduce_fx="cat")

    def update(self, values: Mapping[str, Tensor]) -> None:
        """Add the values of each name, [n]; n may differ between names.

        Raises:
            ValueError: if a name is not one of `names`.
        """
        unknown = [name for name in values if name not in self.names]
        if unknown:
            raise ValueError(
                f"Expected MeanByName.names to have {', '.join(unknown)}, but got {', '.join(self.names)}."
            )
        longest = max(map(len, values.values()), default=0)
        rows = torch.full((longest, len(self.names)), torch.nan, dtype=torch.float64)
        for name, column in values.items():
            rows[: len(column), self.names.index(name)] = column.detach()
        self.rows.append(rows)

    def compute(self) -> dict[str, float]:
        """Return the mean of each name, from an exact sum, so that batching does not change the mean."""
        parts = [self.rows] if isinstance(self.rows, Tensor) else self.rows
        rows = torch.cat([torch.zeros(0, len(self.names)), *(part.cpu() for part in parts)])
        means = {}
        for name, column in zip(self.names, rows.T, strict=True):
            values = column[~column.isnan()].tolist()
            if values:
                means[name] = fsum(values) / len(values)
        return means


class PassAtK(MeanByName):
    """Mean over questions of unbiased pass@k, by the name `pass@<k>`.

    Each k is at most the number of samples per question.

    >>> metric = PassAtK(ks=(1, 2))
    >>> metric.update(torch.tensor([True, False, False, False]), torch.tensor([0, 0, 1, 1]))
    >>> metric.compute()
    {'pass@1': 0.25, 'pass@2': 0.5}
    """

    higher_is_better = True

    def __init__(self, ks: Sequence[int] = (1, 2, 4, 8, 16, 32), **kwargs: Any) -> None:
        super().__init__([f"pass@{k}" for k in ks], **kwargs)
        self.ks = tuple(ks)

    def update(self, correct: Tensor, question: Tensor) -> None:  # type: ignore[override]
        """Count the questions of a batch.

        A call must have all responses to its questions: the verdicts `correct`, [R] bool, and the id of the
        `question` of each response, [R] long.
        """
        index, count = group_index(question)
        right = torch.bincount(index, weights=correct.double(), minlength=count)
        super().update({f"pass@{k}": pass_at_k(torch.bincount(index), right, k) for k in self.ks})


class _MeanOfGroups(MeanByName):
    """Mean of one value of each group, as a [] float64; NaN if there is no value."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(["mean"], **kwargs)

    def compute(self) -> Tensor:  # type: ignore[override]
        """Return the mean over all groups of all ranks."""
        return torch.tensor(super().compute().get("mean", torch.nan), dtype=torch.float64)


class ZeroGradientPercentage(_MeanOfGroups):
    """Percentage of questions whose advantages are all zero, so that they give no gradient.

    With one pool per question, this is the advantage collapse rate (ACR, arXiv 2605.21125, abstract) in percent.

    Args:
        kwargs: Options of `torchmetrics.Metric`.

    >>> metric = ZeroGradientPercentage()
    >>> metric.update(torch.tensor([0.0, 0.0, -1.0, 1.0]), torch.tensor([0, 0, 1, 1]))
    >>> metric.update(torch.tensor([0.0, 0.0]), torch.tensor([0, 0]))  # another question of another batch
    >>> metric.compute().round(decimals=4)
    tensor(66.6667, dtype=torch.float64)
    """

    higher_is_better = False

    def update(self, advantages: Tensor, question: Tensor) -> None:  # type: ignore[override]
        """Count the questions of a batch.

        A call must have all responses to its questions: their advantages, [R] float, and the id of the
        `question` of each response, [R] long.
        """
        super().update({"mean": 100 * zero_gradient_groups(advantages, question).double()})


class MeanPairwiseDistance(_MeanOfGroups):
    """Mean pairwise cosine distance of a question's embedded responses, averaged over questions.

    This is the distance in TA-GRPO, Fig. 4. Questions with a single response do not count.

    Args:
        kwargs: Options of `torchmetrics.Metric`.

    >>> metric = MeanPairwiseDistance()
    >>> metric.update(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]), torch.tensor([0, 0, 1]))
    >>> metric.compute()
    tensor(1., dtype=torch.float64)
    """

    higher_is_better = None

    def update(self, embeddings: Tensor, question: Tensor) -> None:  # type: ignore[override]
        """Count the questions of a batch.

        A call must have all responses to its questions: their embeddings, [R, D] float, and the id of the
        `question` of each response, [R] long.
        """
        super().update({"mean": mean_pairwise_distance(embeddings, question)})
