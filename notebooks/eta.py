"""How strongly a strategy learns from a question, as a function of its accuracy."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tagrpo.modules.advantages.pools import verdicts
from tagrpo.types import AdvantageStrategy


def sum_of_absolute_advantage(strategy: AdvantageStrategy, num_samples: int) -> Tensor:
    """η = c |A⁺| + (n − c) |A⁻| for c = 0 … n correct of n responses to one prompt (arXiv 2508.10751, Eq. 16).

    The rewards are 1 and 0. The strategy sees one pool at a time, with an entropy of 0. With n = 32, Pass@1 peaks at
    c/n = 1/2, analytic Pass@4 at 1/4, Pass@8 at 1/8.

    Returns:
        [n + 1] float32.

    Raises:
        ValueError: n is less than 1.

    >>> from tagrpo.modules.advantages import PassAtKAdvantage
    >>> sum_of_absolute_advantage(PassAtKAdvantage(k=1, epsilon=0.0), 4)  # 2 √(c (n − c))
    tensor([0.0000, 3.4641, 4.0000, 3.4641, 0.0000])
    >>> sum_of_absolute_advantage(PassAtKAdvantage(k=2, epsilon=0.0), 4)  # c = 1: 1 + 3 · ⅓
    tensor([0.0000, 2.0000, 1.7889, 0.0000, 0.0000])
    """
    if num_samples < 1:
        raise ValueError(f"Expected num_samples to be at least 1, but got {num_samples}.")
    zeros = torch.zeros(num_samples)
    pools = (verdicts([1] * c + [0] * (num_samples - c)) for c in range(num_samples + 1))
    return torch.stack([strategy(replace(groups, entropy=zeros)).abs().sum() for groups in pools])
