"""Core: metrics: pure functions in `functional`, and torchmetrics classes that accumulate over batches and ranks."""

from .means import MeanByName, PassAtK

__all__ = ["MeanByName", "PassAtK"]
