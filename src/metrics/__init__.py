"""Core: metrics as pure functions (`functional`), and as torchmetrics classes over batches and ranks."""

from .means import MeanByName, MeanPairwiseDistance, PassAtK, ZeroGradientPercentage

__all__ = ["MeanByName", "MeanPairwiseDistance", "PassAtK", "ZeroGradientPercentage"]
