"""Core: the data that flows through an iteration, and the protocols of parts that can be plugged in."""

from .data import (
    LARGEST_REWARD,
    NO_REWARD,
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
    as_number,
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
    PromptVerifier,
    Reformulator,
    RewardTerm,
    SampledPolicy,
    TokenCredit,
    Verifier,
    ignore,
    require,
)

__all__ = [
    "LARGEST_REWARD", "NO_REWARD", "AdvantageStrategy", "Ask", "Completion", "Credit", "CreditInputs",
    "Deliver", "Engine", "EnumeratingVerifier", "Fields", "Finish", "History", "InvalidScoreError", "Loss",
    "LossInputs", "LossOutputs", "Prompt", "PromptVerifier", "QuestionBatch", "QuestionGroup", "Reformulator",
    "Request", "RewardGroups", "RewardTerm", "Rollouts", "SampledPolicy", "SamplingConfig", "Score",
    "Seconds", "TokenCredit", "Verifier", "as_number", "ignore", "require",
]  # fmt: skip
