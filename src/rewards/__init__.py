"""Core: verifiers: a response and its reference answers in, a `Score` out.

A verifier of your own derives from `tagrpo.types.Verifier` and needs only `__call__(response, reference)`;
with workers, derive from `BackgroundVerifier`. The configuration names it: `reward: {_target_:
my_package.MyVerifier}`. A function with TRL's signature is a `FunctionReward`.
"""

from ..types import Score
from .functions import FunctionReward
from .math import MathReward
from .multiple_choice import MixedReward, MultipleChoiceReward
from .plain_answer import FinalAnswerReward, PlainAnswerReward
from .workers import BackgroundVerifier

__all__ = [
    "BackgroundVerifier", "FinalAnswerReward", "FunctionReward", "MathReward", "MixedReward", "MultipleChoiceReward",
    "PlainAnswerReward", "Score",
]  # fmt: skip
