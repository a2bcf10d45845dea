"""Verifiers: a response and its reference answers in, a `Score` out."""

from ..types import Score
from .final_answer import FinalAnswerReward
from .math import MathReward

__all__ = ["FinalAnswerReward", "MathReward", "Score"]
