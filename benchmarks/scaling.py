"""How the cost of an update grows: with N, G, prompt, response, vocabulary, and tokens at one time.

    python benchmarks/scaling.py --json benchmarks/results/scaling.json

One axis at a time is moved away from a base of one question; points run in turn in every round. `anchored` is TA-GRPO's
update, one prompt for all (N+1)·G responses; `own` is that of GRPO, a prompt for each G. Seconds are CPU seconds, on a
GPU wall seconds.
"""

import argparse
from dataclasses import replace
from typing import Any

import torch
from workload import Experience, Updates, add_shape, experience, machine, median, peak_memory, report, seconds

AXES: dict[str, list[Any]] = {
    "rephrasings": [0, 1, 3, 7],
    "samples": [2, 4, 8, 16],
    "prompt": [50, 100, 200, 400],
    "mean": [30, 60, 120, 240],
    "vocabulary": [4096, 8192, 16384, 32768],
    "questions": [1, 2, 4, 8],
}
"""`questions` grows with the token budget: tokens of one forward."""


def point(shape: argparse.Namespace, axis: str, value: int) -> argparse.Namespace:
    """The base with one axis moved; everything that depends on it follows."""
    moved = argparse.Namespace(**{**vars(shape), axis: value})
    moved.max = 2 * moved.mean
    moved.responses = (moved.rephrasings + 1) * moved.samples
    moved.token_budget = moved.questions * shape.token_budget
    return moved


def own_prompts(data: Experience, samples: int) -> Experience:
    """Each `samples` responses in a row behind a prompt of their own, as long as the shared one."""
    prompt = torch.arange(len(data.responses)) // samples
    prompts = [data.prompts[int(data.prompt[row])] for row in range(0, len(data.responses), samples)]
    return replace(data, prompts=prompts, prompt=prompt)


def measure_axis(shape: argparse.Namespace, axis: str) -> list[dict[str, float]]:
    """One row per value: tokens, seconds anchored and own, peak MiB anchored."""
    rows, runs = [], []
    for value in AXES[axis]:
        moved = point(shape, axis, value)
        data = experience(moved)
        anchored = Updates(moved, data, ways=())
        own = Updates(moved, own_prompts(data, moved.samples), ways=())
        anchored.run("prefix_shared")
        anchored.model.zero_grad(set_to_none=False)
        peak = peak_memory(lambda run=anchored: run.run("prefix_shared"), moved.device)
        rows.append({axis: value, "distinct_tokens": data.tokens["distinct"], "peak_mib": peak / 2**20})
        runs.append({"anchored": anchored, "own": own})
    times: list[dict[str, list[float]]] = [{name: [] for name in run} for run in runs]
    for _ in range(shape.rounds):
        for run, found in zip(runs, times, strict=True):
            for name, updates in run.items():
                found[name].append(seconds(lambda updates=updates: updates.run("prefix_shared"), shape.device)[0])
    return [
        {**row, **{f"seconds_{name}": median(values) for name, values in found.items()}}
        for row, found in zip(rows, times, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of an update along each axis.")
    add_shape(parser)
    parser.add_argument("--rephrasings", type=int, default=3, help="N, rephrasings per question")
    parser.add_argument("--samples", type=int, default=4, help="G, responses per prompt")
    parser.add_argument("--axes", nargs="*", choices=AXES, default=list(AXES))
    parser.set_defaults(prompt=100, mean=60, vocabulary=8192, rounds=2, token_budget=2048)
    shape = parser.parse_args()
    torch.set_num_threads(shape.threads)
    figures: dict[str, Any] = {
        "machine": machine(shape.device),
        "torch": torch.__version__,
        "shape": {name: value for name, value in vars(shape).items() if name != "json"},
    }
    figures |= {axis: measure_axis(shape, axis) for axis in shape.axes}
    report(figures, shape.json)


if __name__ == "__main__":
    main()
