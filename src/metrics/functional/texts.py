"""How different responses are, as an encoder sees them."""

from __future__ import annotations

import torch
from torch import Tensor

from .groups import group_index


def mean_pairwise_distance(embeddings: Tensor, group: Tensor) -> Tensor:
    """[num_groups] float64 in 0..2, mean of 1 − cosine over all pairs of a group (TA-GRPO, Fig. 4); NaN for one.

    Its expectation does not depend on the group's size. Linear in the number of responses, as
    Σ_{i≠j} cos = |Σ_i u_i|² − n for unit vectors u. `embeddings`: [R, D] float of any length; a zero vector counts as
    orthogonal to all others.

    >>> mean_pairwise_distance(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]), torch.tensor([0, 0, 0]))
    tensor([0.6667], dtype=torch.float64)
    """
    index, count = group_index(group)
    unit = torch.nn.functional.normalize(embeddings.double(), dim=-1)
    sums = unit.new_zeros(count, unit.shape[-1]).index_add(0, index, unit)
    own = unit.new_zeros(count).index_add(0, index, unit.square().sum(-1))
    sizes = torch.bincount(index, minlength=count).double()
    cosines = (sums.square().sum(-1) - own) / (sizes * (sizes - 1))
    # Rounding may leave −1e-16 for identical responses.
    return (1 - cosines).clamp(0, 2).masked_fill(sizes < 2, torch.nan)
