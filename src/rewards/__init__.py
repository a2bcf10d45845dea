"""Verifiers: a response and its reference answers in, a `Score` out."""

from ..types import Score
from .final_answer import FinalAnswerReward

__all__ = ["FinalAnswerReward", "Score"]
