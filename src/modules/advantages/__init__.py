"""Advantage strategies: plain classes, `RewardGroups` → [R] advantages. One strategy, one file."""

from .combination import CombinationAdvantage
from .difficulty import DifficultyWeightedAdvantage
from .entropy_adaptive import EntropyAdaptiveAdvantage
from .eta import sum_of_absolute_advantage
from .exceeding import ExceedingPassAtKAdvantage
from .group import GroupAdvantage
from .outcome_exploration import BatchExplorationAdvantage, HistoricalExplorationAdvantage
from .overtraining_gate import OvertrainingGateAdvantage
from .pass_at_k import PassAtKAdvantage
from .pkpo import PKPOAdvantage
from .risk_sensitive import RiskSensitiveAdvantage
from .semantic_entropy import SemanticEntropyAdvantage
from .unlikeliness import UnlikelinessAdvantage
from .verdict import VerdictAdvantage
from .virtual_success import VirtualSuccessAdvantage
from .without_easy import WithoutEasyAdvantage

__all__ = [
    "BatchExplorationAdvantage",
    "CombinationAdvantage",
    "DifficultyWeightedAdvantage",
    "EntropyAdaptiveAdvantage",
    "ExceedingPassAtKAdvantage",
    "GroupAdvantage",
    "HistoricalExplorationAdvantage",
    "OvertrainingGateAdvantage",
    "PKPOAdvantage",
    "PassAtKAdvantage",
    "RiskSensitiveAdvantage",
    "SemanticEntropyAdvantage",
    "UnlikelinessAdvantage",
    "VerdictAdvantage",
    "VirtualSuccessAdvantage",
    "WithoutEasyAdvantage",
    "sum_of_absolute_advantage",
]
