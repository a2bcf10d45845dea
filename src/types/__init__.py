"""The vocabulary: the data that flows through an iteration, and the parts that can be plugged in."""

from .data import (
    Completion,
    LossInputs,
    LossOutputs,
    Prompt,
    QuestionBatch,
    QuestionGroup,
    Request,
    RewardGroups,
    Rollouts,
    SamplingConfig,
    Score,
    Seconds,
)
from .protocols import AdvantageStrategy, Deliver, Engine, Finish, Loss, RewardTerm, Verifier, ignore, require

__all__ = [
    "AdvantageStrategy",
    "Completion",
    "Deliver",
    "Engine",
    "Finish",
    "Loss",
    "LossInputs",
    "LossOutputs",
    "Prompt",
    "QuestionBatch",
    "QuestionGroup",
    "Request",
    "RewardGroups",
    "RewardTerm",
    "Rollouts",
    "SamplingConfig",
    "Score",
    "Seconds",
    "Verifier",
    "ignore",
    "require",
]
