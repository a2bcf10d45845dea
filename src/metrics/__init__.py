"""Metrics: pure functions in `functional`, torchmetrics classes that accumulate them here."""

from .groups import MeanPairwiseDistance, UniformRewardPercentage, ZeroGradientPercentage
from .pass_at_k import PassAtK

__all__ = ["MeanPairwiseDistance", "PassAtK", "UniformRewardPercentage", "ZeroGradientPercentage"]
