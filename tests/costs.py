"""FLOP and bytes of whatever runs inside a context, counted operation by operation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

IN_PLACE = {torch.ops.aten.addmm_: torch.ops.aten.addmm}
"""Products that torch's own counter leaves out → those that it counts."""


class Costs(TorchDispatchMode):
    """Counts what is computed inside the context; of real tensors and of fake ones alike.

    Bytes are those that operations read and write as they stand, without fusion: what a compiler could save shows as
    the part that is not in products. Views cost nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.product_flop = 0
        """2 · m · n · k of each matrix product."""
        self.attention_flop = 0
        """Of fused attention, as if every query saw every key of its block."""
        self.product_bytes = 0
        self.other_bytes = 0
        """Of everything else: norms, activations, softmaxes, sums, copies."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count it."""
        out = func(*args, **(kwargs or {}))
        packet = IN_PLACE.get(func.overloadpacket, func.overloadpacket)
        if packet in flop_registry:
            flop = flop_registry[packet](*args, **(kwargs or {}), out_val=out)
            if "attention" in str(packet):
                self.attention_flop += flop
                return out
            self.product_flop += flop
        if not func.is_view and "empty" not in func.name():
            tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, Tensor)]
            moved = sum(t.numel() * t.element_size() for t in tensors)
            if packet in flop_registry:
                self.product_bytes += moved
            else:
                self.other_bytes += moved
        return out
