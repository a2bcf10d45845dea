"""Seconds, memory and share of the matrix rate of one update, in five ways that have the same gradient.

    python benchmarks/update_step.py --json benchmarks/results/update_step.json

TRL's `GRPOTrainer` (the extra `bench`) as it is and after `share_prefixes`, the model's own padded forward, packed
without padding, packed with shared prefixes: see `workload.Updates`. All run in turn in every round on the same
responses of the same randomly initialised Qwen3, and their gradients are compared. "Dropped" is a batch of which 80 %
of the questions have rewards that are all equal, with and without leaving them out.

Ratios and shares are medians over rounds of CPU time (wall time on a GPU), so that they hold on a machine that others
use as well; `best` is the ratio of the shortest times of any round. TRL runs without gradient checkpointing, its
default, which would cost it another forward.
"""

import argparse
from collections.abc import Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor
from workload import (
    WAYS,
    Experience,
    MatrixRate,
    Updates,
    add_shape,
    experience,
    peak_memory,
    report,
    seconds,
    useful_flop,
)

Times = dict[str, list[tuple[float, float]]]


class Measured(NamedTuple):
    times: Times
    """(CPU or GPU seconds, wall seconds) of each way in each round, and of one matrix product."""
    gradients: dict[str, Tensor]
    peak: dict[str, int]
    """Bytes, beyond weights and gradients."""


def rounds(updates: Updates, ways: Sequence[str], count: int, device: str) -> Measured:
    """`count` rounds, after one update that warms up."""
    rate = MatrixRate(device, updates.model.dtype)
    found = Measured({name: [] for name in (*ways, "product")}, {}, {})
    updates.run(ways[-1])
    for index in range(count):
        for way in ways:
            updates.model.zero_grad(set_to_none=False)

            def timed(way: str = way) -> None:
                found.times[way].append(seconds(lambda: updates.run(way), device))

            found.peak[way] = peak_memory(timed, device)
            if index == count - 1:  # copies of gigabytes
                found.gradients[way] = updates.gradient()
        found.times["product"].append(rate())
    return found


def ratio(times: Times, slow: str, fast: str) -> dict[str, float]:
    pairs = [(a[0], b[0]) for a, b in zip(times[slow], times[fast], strict=True)]
    return {
        "median": median(a / b for a, b in pairs),
        "best": min(a for a, _ in pairs) / min(b for _, b in pairs),
    }


def difference(gradients: dict[str, Tensor], way: str, reference: str) -> float:
    """|a − b| / |b|, summed in float64."""
    a, b = gradients[way], gradients[reference]
    return float((a - b).norm(dtype=torch.float64) / b.norm(dtype=torch.float64))


def measure(shape: argparse.Namespace, kind: type[Updates] = Updates) -> dict[str, object]:
    """Everything but the dropping; the first of the ways has the gradient that the others are compared with."""
    device, ways = shape.device, shape.ways
    data = experience(shape)
    updates = kind(shape, data, ways)
    times, gradients, peak = rounds(updates, ways, shape.rounds, device)
    if (device, shape.dtype) == ("cpu", "bfloat16"):
        exact = Updates(argparse.Namespace(**{**vars(shape), "dtype": "float32"}), data, ())
        exact.model.load_state_dict(updates.model.state_dict())
        exact.run("prefix_shared")
        gradients["exact"] = exact.gradient()
    flop, rate = useful_flop(updates.model, data.tokens), MatrixRate(device, updates.model.dtype)
    unit = rate.flop / flop  # seconds of the update at the matrix rate, over those of one product
    return {
        "parameters": sum(p.numel() for p in updates.model.parameters()),
        "tokens": data.tokens,
        "seconds": {name: median(t[0] for t in values) for name, values in times.items()},
        "tokens_per_second": {w: data.tokens["response"] / median(t[0] for t in times[w]) for w in ways},
        "peak_mib": {way: size / 2**20 for way, size in peak.items()},
        "speedup": {f"{b} over {a}": ratio(times, a, b) for a, b in combinations(ways, 2)},
        "matrix_gflops": median(rate.flop / t[0] for t in times["product"]) / 1e9,
        "share_of_matrix_rate": {
            way: median(p[0] / t[0] / unit for p, t in zip(times["product"], times[way], strict=True)) for way in ways
        },
        "gradient_difference": {way: difference(gradients, way, ways[0]) for way in ways[1:]},
        "gradient_error": {way: difference(gradients, way, "exact") for way in ways if "exact" in gradients},
    }


def measure_dropping(shape: argparse.Namespace, questions: int = 5) -> dict[str, object]:
    """One question of five has a gradient; GRPO without KL."""
    several = argparse.Namespace(**{**vars(shape), "questions": questions})
    data = experience(several)
    advantages = torch.where(data.prompt == 0, data.advantages, 0.0)
    updates = Updates(several, Experience(data.prompts, data.prompt, data.responses, advantages), ways=())
    times, gradients, _ = rounds(updates, ["prefix_shared", "dropped"], shape.rounds, shape.device)
    return {
        "uniform_questions": 1 - 1 / questions,
        "speedup": ratio(times, "prefix_shared", "dropped"),
        "gradient_difference": difference(gradients, "dropped", "prefix_shared"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="One update, five ways: seconds, memory, share of the matrix rate.")
    add_shape(parser)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--dropping", action="store_true", help="measure what dropping uniform questions gains instead")
    shape = parser.parse_args()
    torch.set_num_threads(1)
    report({"dropping": measure_dropping(shape)} if shape.dropping else measure(shape), shape)


if __name__ == "__main__":
    main()
