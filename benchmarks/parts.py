"""Where the time of an update goes, and what each part takes from the most that sharing prefixes can save.

    python benchmarks/parts.py --rounds 5 --json benchmarks/results/parts.json

CPU seconds of every operation of one update, forward and backward, without padding and with shared prefixes, which
take turns. With T_i the seconds of a part when prefixes are shared, r_i how many times longer it takes without sharing,
and c the ratio of tokens, the most that can be saved: the whole update falls short of c by Σ T_i (c − r_i) / Σ T_i.
"""

import argparse
import time
from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from workload import Updates, add_shape, experience, machine, median, report

from tagrpo.modules.policy import causal_policy

WAYS = ("padding_free", "prefix_shared")
PRODUCTS = ("mm", "addmm", "addmm_")
MOVES = ("index_select", "index_add", "index", "cat", "embedding", "embedding_dense_backward", "scatter_add", "clone")
REST = "all else: autograd, packing, Python"


class PartClock(TorchDispatchMode):
    """Adds up the CPU seconds of operations by the part of the update that they belong to."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: Counter[str] = Counter()
        self.in_head = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        start = time.process_time()
        out = func(*args, **(kwargs or {}))
        self.seconds[self.part(func.overloadpacket.__name__)] += time.process_time() - start
        return out

    def part(self, name: str) -> str:
        if self.in_head:
            return "output head: products" if name in PRODUCTS else "output head: softmax and the rest"
        if name in PRODUCTS:
            return "layers: products"
        if "scaled_dot_product" in name:
            return "attention"
        return "layers: copies of rows" if name in MOVES else "layers: norms, rotary, SwiGLU, sums"


def parts_of(updates: Updates, way: str) -> dict[str, float]:
    """Part → CPU seconds of one update."""
    updates.model.zero_grad(set_to_none=False)
    head_loss = causal_policy.head_loss

    def marked(*arguments: Any) -> Any:
        clock.in_head = True
        try:
            return head_loss(*arguments)
        finally:
            clock.in_head = False

    causal_policy.head_loss = marked
    start = time.process_time()
    with PartClock() as clock:
        updates.run(way)
    total = time.process_time() - start
    causal_policy.head_loss = head_loss
    return {**clock.seconds, REST: total - clock.seconds.total(), "update": total}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_shape(parser)
    shape = parser.parse_args()
    torch.set_num_threads(shape.threads)
    data = experience(shape)
    updates = Updates(shape, data, ways=())
    for way in WAYS:
        updates.run(way)
    rounds = [{way: parts_of(updates, way) for way in WAYS} for _ in range(shape.rounds)]
    ceiling = data.tokens["repeated"] / data.tokens["distinct"]
    whole = median(found["prefix_shared"]["update"] for found in rounds)
    parts = {}
    for part in sorted(rounds[0]["prefix_shared"], key=lambda name: -rounds[0]["prefix_shared"][name]):
        free, shared = ([found[way][part] for found in rounds] for way in WAYS)
        ratio = median(a / b for a, b in zip(free, shared, strict=True))
        parts[part] = {
            "padding_free": median(free), "prefix_shared": median(shared), "ratio": ratio,
            "short": median(shared) * (ceiling - ratio) / whole,
        }  # fmt: skip
    named = {name: value for name, value in vars(shape).items() if name != "json"}
    figures = {
        "machine": machine("cpu"),
        "torch": torch.__version__,
        "shape": named,
        "ceiling": ceiling,
        "parts": parts,
    }
    report(figures, shape.json)


if __name__ == "__main__":
    main()
