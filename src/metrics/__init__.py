"""Metrics: pure functions in `functional`; here torchmetrics classes that accumulate them over batches and ranks."""

from .difficulty import DifficultyHomogeneity
from .evaluation import EvaluationCounts
from .means import GroupMean, MeanByName
from .pass_at_k import MajAtK, PassAtK

__all__ = ["DifficultyHomogeneity", "EvaluationCounts", "GroupMean", "MajAtK", "MeanByName", "PassAtK"]
