"""Metrics: pure functions in `functional`; here torchmetrics classes that accumulate them over batches and ranks."""

from .means import MeanByName, PassAtK

__all__ = ["MeanByName", "PassAtK"]
