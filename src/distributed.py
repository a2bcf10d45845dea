"""Collectives over the default process group; in a single process they do nothing.

The few numbers of an optimizer step are gathered as objects, which costs milliseconds, and added in rank
order, so that every rank computes the same float.
"""

from collections.abc import Mapping
from typing import TypeVar

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

T = TypeVar("T")


def world_size() -> int:
    """Return the number of ranks, 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return this process's rank, 0 without a process group."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def gather_objects(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Return the picklable `value` of every rank, [world], in rank order.

    With a `group`, only the values of the ranks of this group are returned.
    """
    if world_size() == 1:
        return [value]
    gathered: list[T | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, value, group=group)
    return gathered  # type: ignore[return-value]


def sum_over_ranks(sums: Mapping[str, float]) -> dict[str, float]:
    """Sum the values of each name over all ranks; a rank that lacks a name counts as zero."""
    parts = gather_objects(dict(sums))
    return {name: sum(part.get(name, 0.0) for part in parts) for name in sorted(set().union(*parts))}


def max_over_ranks(value: float) -> float:
    """Return the largest value of any rank."""
    return max(gather_objects(value))


def own_part(parameter: Tensor) -> Tensor:
    """Return this rank's shard of a parameter, or the whole parameter if it is not sharded."""
    tensor = parameter.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
