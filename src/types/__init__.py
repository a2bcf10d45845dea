"""Core: the vocabulary: the data that flows through an iteration, and the parts that can be plugged in."""

from .data import (
    Completion,
    History,
    InvalidScoreError,
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
from .fields import Fields
from .learning import Credit, CreditInputs, LossInputs, LossOutputs
from .protocols import (
    AdvantageStrategy,
    Ask,
    Deliver,
    Engine,
    EnumeratingVerifier,
    Finish,
    Loss,
    Reformulator,
    RewardTerm,
    SampledPolicy,
    TokenCredit,
    Verifier,
    ignore,
    require,
)

__all__ = [
    "AdvantageStrategy", "Ask", "Completion", "Credit", "CreditInputs", "Deliver", "Engine",
    "EnumeratingVerifier", "Fields", "Finish", "History", "InvalidScoreError", "Loss", "LossInputs",
    "LossOutputs", "Prompt", "QuestionBatch", "QuestionGroup", "Reformulator", "Request", "RewardGroups",
    "RewardTerm", "Rollouts", "SampledPolicy", "SamplingConfig", "Score", "Seconds", "TokenCredit",
    "Verifier", "ignore", "require",
]  # fmt: skip
