"""Metrics: pure functions in `functional`, and torchmetrics classes for means over batches and ranks."""

from .means import MeanByName, PassAtK

__all__ = ["MeanByName", "PassAtK"]
