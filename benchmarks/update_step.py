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
from typing import Any

import torch
from torch import Tensor
from workload import (
    WAYS,
    Experience,
    Updates,
    add_shape,
    experience,
    matrix_rate,
    peak_memory,
    report,
    seconds,
)

Times = dict[str, list[float]]
"""Way → CPU seconds of each round, wall seconds on a GPU."""


def rounds(
    updates: Updates, ways: Sequence[str], shape: argparse.Namespace
) -> tuple[Times, Any, Any, list[float]]:
    """Times of each way; its gradient; its peak of bytes beyond weights and gradients; the matrix rate of each round.

    One update warms up.
    """
    times, gradients, peak, rates = {way: [] for way in ways}, {}, {}, []
    updates.run(ways[-1])
    for index in range(shape.rounds):
        for way in ways:
            updates.model.zero_grad(set_to_none=False)

            def timed(way: str = way) -> None:
                times[way].append(seconds(lambda: updates.run(way), shape.device))

            peak[way] = peak_memory(timed, shape.device)
            if index == shape.rounds - 1:  # copies of gigabytes
                gradients[way] = updates.gradient()
        rates.append(matrix_rate(shape.device, updates.model.dtype))
    return times, gradients, peak, rates


def ratio(times: Times, slow: str, fast: str) -> dict[str, float]:
    ratios = (a / b for a, b in zip(times[slow], times[fast], strict=True))
    return {"median": median(ratios), "best": min(times[slow]) / min(times[fast])}


def difference(gradients: dict[str, Tensor], way: str, reference: str) -> float:
    """|a − b| / |b|, summed in float64."""
    a, b = gradients[way], gradients[reference]
    return float((a - b).norm(dtype=torch.float64) / b.norm(dtype=torch.float64))


def measure(shape: argparse.Namespace, kind: type[Updates] = Updates) -> dict[str, object]:
    """Everything but the dropping; the first of the ways has the gradient that the others are compared with."""
    ways, data = shape.ways, experience(shape)
    updates = kind(shape, data, ways)
    times, gradients, peak, rates = rounds(updates, ways, shape)
    if (shape.device, shape.dtype) == ("cpu", "bfloat16"):
        exact = Updates(argparse.Namespace(**{**vars(shape), "dtype": "float32"}), data, ())
        exact.model.load_state_dict(updates.model.state_dict())
        exact.run("prefix_shared")
        gradients["exact"] = exact.gradient()
    # Useful are 6 FLOP per parameter of the layers and distinct prefix, 6 per element of the head and distinct state;
    # attention and everything computed twice count as nothing.
    layers = sum(p.numel() for p in updates.model.model.layers.parameters())
    head, tokens = updates.model.lm_head.weight.numel(), data.tokens
    flop = 6 * layers * tokens["distinct"] + 6 * head * tokens["states"]
    return {
        "parameters": sum(p.numel() for p in updates.model.parameters()),
        "tokens": tokens,
        "seconds": {way: median(times[way]) for way in ways},
        "tokens_per_second": {way: tokens["response"] / median(times[way]) for way in ways},
        "peak_mib": {way: size / 2**20 for way, size in peak.items()},
        "speedup": {f"{b} over {a}": ratio(times, a, b) for a, b in combinations(ways, 2)},
        "matrix_gflops": median(rates) / 1e9,
        "share_of_matrix_rate": {
            way: median(flop / t / rate for t, rate in zip(times[way], rates, strict=True)) for way in ways
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
    times, gradients, *_ = rounds(updates, ["prefix_shared", "dropped"], shape)
    return {
        "uniform_questions": 1 - 1 / questions,
        "speedup": ratio(times, "prefix_shared", "dropped"),
        "gradient_difference": difference(gradients, "dropped", "prefix_shared"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description="One update, five ways: seconds, memory, share of the matrix rate."
    )
    add_shape(parser)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument(
        "--dropping", action="store_true", help="measure what dropping uniform questions gains instead"
    )
    shape = parser.parse_args()
    torch.set_num_threads(1)
    report({"dropping": measure_dropping(shape)} if shape.dropping else measure(shape), shape)


if __name__ == "__main__":
    main()
