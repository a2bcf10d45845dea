"""Verifiers: a response and its reference answers in, a `Score` out.

Your own derives from `tagrpo.types.Verifier` and needs `__call__(response, reference)` alone, or from
`BackgroundVerifier` if it has workers. The configuration names it: `reward: {_target_: my_package.MyVerifier}`.
"""

from ..types import Score
from .final_answer import FinalAnswerReward
from .math import MathReward
from .mixed import MixedReward
from .multiple_choice import MultipleChoiceReward
from .plain_answer import PlainAnswerReward
from .workers import BackgroundVerifier

__all__ = [
    "BackgroundVerifier", "FinalAnswerReward", "MathReward", "MixedReward", "MultipleChoiceReward", "PlainAnswerReward",
    "Score",
]  # fmt: skip
