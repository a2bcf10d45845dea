"""Low-rank adapters as tensors: their names on the way to an engine, and the merge, the same on both sides.

Ahead of a weight `w` come `w.lora_A` [r, in], `w.lora_B` [out, r] and `w.lora_scale` [], of which W' = W + scale · B A.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

A, B, SCALE = ".lora_A", ".lora_B", ".lora_scale"


def is_part(name: str) -> bool:
    """Whether a tensor of this name is part of an adapter, not a weight."""
    return name.endswith((A, B, SCALE))


def merged(weight: Tensor, a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    """W + scale · B A, summed in float32 or wider, in the type of W."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    return (weight.to(wide) + b.to(wide) @ a.to(wide) * scale.to(wide)).to(weight.dtype)


class BaseWeights:
    """The weights that adapters belong to, kept in host memory; workers that receive the same tensors share one copy.

    Args:
        device: Where to merge.
        place: Number of this worker among those that share.
        workers: How many share.
        gather: One piece on `device` → those of all workers, in a row; all call it in the same order.
    """

    def __init__(
        self,
        device: torch.device,
        place: int = 0,
        workers: int = 1,
        gather: Callable[[Tensor], Tensor] = lambda piece: piece,
    ) -> None:
        self.device, self.place, self.workers, self.gather = device, place, workers, gather
        self.kept: dict[str, tuple[Tensor, torch.Size]] = {}

    def merge(self, arriving: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield all weights with their adapters merged: those that arrive behind adapters, else those kept before."""
        parts: dict[str, Tensor] = {}
        alone = True
        for name, tensor in arriving:
            if is_part(name):
                parts[name] = tensor.to(self.device)
                continue
            if alone:
                alone, self.kept = False, {}
            if parts:
                self.kept[name] = self._piece(tensor), tensor.shape
            yield name, self._adapted(name, tensor, parts)
        alone = alone and bool(parts)  # nothing at all may arrive, too
        if alone and not self.kept:
            raise ValueError("Expected weights behind the first adapters that arrive, but got adapters alone.")
        for name, (piece, shape) in self.kept.items() if alone else ():
            whole = self.gather(piece.to(self.device))[: shape.numel()].view(shape)
            yield name, self._adapted(name, whole, parts)

    def _adapted(self, name: str, weight: Tensor, parts: dict[str, Tensor]) -> Tensor:
        if name + A not in parts:
            return weight
        return merged(weight.to(self.device), *(parts[name + part] for part in (A, B, SCALE)))

    def _piece(self, tensor: Tensor) -> Tensor:
        """This worker's shard of a tensor on the CPU."""
        size = -(-tensor.numel() // self.workers)
        own = tensor.flatten()[self.place * size : (self.place + 1) * size]
        return torch.cat([own, own.new_zeros(size - len(own))])
