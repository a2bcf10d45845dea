"""Core: metrics: pure functions in `functional`, and torchmetrics classes that accumulate over batches and ranks."""

from .means import MeanByName, MeanPairwiseDistance, PassAtK, ZeroGradientPercentage

__all__ = ["MeanByName", "MeanPairwiseDistance", "PassAtK", "ZeroGradientPercentage"]
