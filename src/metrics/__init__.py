"""Metrics: pure functions in `functional`, torchmetrics classes that accumulate them here."""

from .groups import AnswerDiversity, MeanPairwiseDistance, UniformRewardPercentage, ZeroGradientPercentage
from .pass_at_k import PassAtK

__all__ = ["AnswerDiversity", "MeanPairwiseDistance", "PassAtK", "UniformRewardPercentage", "ZeroGradientPercentage"]
