"""Verifiers: a response and its reference answers in, a `Score` out.

A verifier is any callable `(response, reference) -> Score`; one that also has `judge_batch(responses,
references)` is asked for all responses at once. A configuration names it by `_target_`, so a function of
one's own needs nothing else: `reward: {_target_: my_package.my_verifier, _partial_: true}`.
"""

from ..types import Score
from .countdown import CountdownReward
from .final_answer import FinalAnswerReward
from .math import MathReward
from .mixed import MixedReward
from .multiple_choice import MultipleChoiceReward
from .shortest_path import ShortestPathReward

__all__ = [
    "CountdownReward",
    "FinalAnswerReward",
    "MathReward",
    "MixedReward",
    "MultipleChoiceReward",
    "Score",
    "ShortestPathReward",
]
