"""Core: verifiers, which turn a response and its reference answers into a `Score`.

A verifier of your own derives from `tagrpo.types.Verifier` and needs only `__call__(response, reference)`.
With workers, derive it from `BackgroundVerifier`. The configuration names the class: `reward: {_target_:
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
