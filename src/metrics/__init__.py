"""Metrics: pure functions in `functional`, torchmetrics classes that accumulate them here."""

from .budget import BudgetLedger
from .groups import (
    AnswerDiversity,
    AnswerEntropy,
    DistinctN,
    EffectiveSampleShare,
    MeanPairwiseDistance,
    PairwiseDistanceDensity,
    SampledEntropy,
    SumAbsoluteAdvantage,
    UniformRewardPercentage,
    ZeroGradientCauses,
    ZeroGradientPercentage,
)
from .pass_at_k import MajAtK, PassAtK
from .variants import DifficultyHomogeneity, MeanByKey

__all__ = [
    "AnswerDiversity",
    "AnswerEntropy",
    "BudgetLedger",
    "DifficultyHomogeneity",
    "DistinctN",
    "EffectiveSampleShare",
    "MajAtK",
    "MeanByKey",
    "MeanPairwiseDistance",
    "PairwiseDistanceDensity",
    "PassAtK",
    "SampledEntropy",
    "SumAbsoluteAdvantage",
    "UniformRewardPercentage",
    "ZeroGradientCauses",
    "ZeroGradientPercentage",
]
