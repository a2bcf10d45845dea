"""Metrics: pure functions in `functional`; here torchmetrics classes that accumulate them over batches and ranks."""

from .evaluation import EvaluationCounts
from .means import MeanByName, PassAtK

__all__ = ["EvaluationCounts", "MeanByName", "PassAtK"]
