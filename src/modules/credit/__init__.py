"""Credit per token: plain classes, `CreditInputs` → [T] advantages of one mini-batch. One method, one small class."""

from .covariance import ClipCovCredit, KLCovCredit
from .high_entropy import HighEntropyCredit
from .zero_variance import ZeroVarianceCredit

__all__ = ["ClipCovCredit", "HighEntropyCredit", "KLCovCredit", "ZeroVarianceCredit"]
