"""Training SmolLM2-135M on products in several wordings: a check on a real model, no test of the methods.

    python -m studies.smollm2 rates     # each arm with each learning rate, on seed 100 and validation questions alone
    python -m studies.smollm2 train     # each arm with its rate, on the seeds that are reported
    python -m studies.smollm2 page      # the tables of docs/smollm2.md, from the results kept beside this file

All arms are those of `make demo-lm`, and Pass@k training; runs last 18 iterations. A finished run is a line of
`smollm2.jsonl`; the same command goes on where it was interrupted. An arm's learning rate is the one with the best
pass@1 on validation questions.

Expected, written down before the first run: (1) all arms end above the untrained model in pass@1 of both tests;
(2) TA-GRPO leaves fewer questions without gradient than GRPO with as many samples; (3) TA-GRPO is ahead of GRPO with
as many samples in pass@1 of wordings that are not trained; (4) with so few seeds no difference in pass@32 is told
from noise.
"""

from __future__ import annotations

import csv
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from scipy import stats

from tagrpo.cli.compare import Method, runs_of
from tagrpo.runs.grid import run_grid

from . import write_section

ARMS: Mapping[str, str] = {
    "grpo": "GRPO",
    "grpo_matched": "GRPO, as many samples",
    "ta_grpo": "TA-GRPO",
    "pass_at_k": "Pass@k training",
}
RATES, RATE_SEED, SEEDS = ("2e-5", "4e-5", "1e-5"), 100, range(4)
COMMON = (
    "data=multiplication",
    'template.instruction="Give only the number."',
    "rollout.sampling.max_new_tokens=16",
    "policy.mini_batches=1",
    "policy.token_budget=1024",
    "loss.kl_coef=0",
    "logger=csv",
    "export=false",
    "callbacks.checkpoint.every=6",
    "callbacks.checkpoint.keep=1",
)
TRAINED = "iterations=18"
VALIDATION = (
    "~data.evaluation.test_id",
    "~data.evaluation.test_phrasing",
    "+data.evaluation.validation={_target_: tagrpo.lab.tasks.multiplication.MultiplicationSource, "
    "split: validation, size: 15}",
)
ROOT, KEPT = Path("runs/smollm2"), Path(__file__).with_suffix(".jsonl")
Result = Mapping[str, Any]
"""A finished run: arm, rate, seed, `pass@k` of each split, `course` of metrics over the iterations."""
COURSE = {
    "without_gradient": "zero_gradient/percentage",
    "entropy": "rollout/entropy",
    "correct": "rollout/correct_original",
    "distance": "embedding_distance/pool",
}


def results() -> list[dict[str, Any]]:
    """The runs that have finished, in their order."""
    return [json.loads(line) for line in KEPT.read_text().splitlines()] if KEPT.exists() else []


def result(arm: str, rate: str, seed: int, folder: Path) -> dict[str, Any]:
    """What is kept of a run."""
    tested = json.loads((folder / "test.json").read_text())
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    course = {name: [round(float(row[key]), 4) for row in rows if row.get(key)] for name, key in COURSE.items()}
    passed = {
        split: {k: round(each["value"], 6) for k, each in found["pass_at_k"].items()}
        for split, found in tested["splits"].items()
    }
    return {"arm": arm, "rate": rate, "seed": seed, "pass@k": passed, "course": course}


def run(cells: Sequence[tuple[str, str, int]], overrides: Sequence[str]) -> None:
    """Run the (arm, rate, seed) that have not finished, one after the other, and keep what they found."""
    known = {(each["arm"], each["rate"], each["seed"]) for each in results()}
    for arm, rate, seed in cells:
        if (arm, rate, seed) in known:
            continue
        own = ["experiment=grpo", "iterations=0"] if arm == "untrained" else [f"experiment={arm}", TRAINED]
        method = Method([*own, f"optimizer.lr={rate}"])
        grid = runs_of(ROOT, {f"{arm}_{rate}": method}, [seed], [*COMMON, *overrides])
        if run_grid(grid, {"cluster": "local", "timeout_min": 525600}, [{}], Console()):
            sys.exit(grid[0].log_tail())
        with KEPT.open("a") as file:
            file.write(json.dumps(result(arm, rate, seed, grid[0].directory)) + "\n")
        shutil.rmtree(grid[0].directory / "checkpoints", ignore_errors=True)


def chosen(found: Sequence[Result]) -> dict[str, str]:
    """Arm → its learning rate: the best pass@1 on validation questions."""
    tried = {arm: [each for each in found if (each["arm"], each["seed"]) == (arm, RATE_SEED)] for arm in ARMS}
    return {arm: max(runs, key=_validated)["rate"] for arm, runs in tried.items() if runs}


def _validated(each: Result) -> float:
    return float(each["pass@k"]["validation"]["1"])


def told(values: Sequence[float]) -> str:
    """Mean over seeds, in percent, and its 95 % interval by Student's t."""
    percent = 100 * np.asarray(values, dtype=np.float64)
    if len(percent) < 2:
        return f"{percent.mean():.1f}"
    mean, half = percent.mean(), stats.t.ppf(0.975, len(percent) - 1) * stats.sem(percent)
    return f"{mean:.1f} [{mean - half:.1f}, {mean + half:.1f}]"


def section(found: Sequence[Result]) -> Iterator[str]:
    """The tables, line by line."""
    rates = chosen(found)
    by_arm = {
        arm: {each["seed"]: each for each in found if each["arm"] == arm and each["seed"] != RATE_SEED}
        for arm in ("untrained", *ARMS)
    }
    yield from ("| validation, pass@1 in % | " + " | ".join(RATES) + " | chosen |", "|---|" + "---|" * (len(RATES) + 1))
    for arm, name in ARMS.items():
        tried = {each["rate"]: _validated(each) for each in found if (each["arm"], each["seed"]) == (arm, RATE_SEED)}
        cells = [f"{100 * tried[rate]:.1f}" if rate in tried else "–" for rate in RATES]
        yield f"| {name} | {' | '.join(cells)} | {rates.get(arm, '–')} |"
    shown = {arm: runs for arm, runs in by_arm.items() if runs}
    if not shown:
        return
    titles = {"untrained": "untrained", **ARMS}
    yield from ("", "| % | " + " | ".join(f"{titles[arm]} ({len(runs)} seeds)" for arm, runs in shown.items()) + " |")
    yield "|---|" + "---|" * len(shown)
    for (split, words), k in product({"test_id": "test", "test_phrasing": "other wordings"}.items(), ("1", "32")):
        values = [told([each["pass@k"][split][k] for each in runs.values()]) for runs in shown.values()]
        yield f"| {words}, pass@{k} | {' | '.join(values)} |"
    values = [
        told([float(np.mean(each["course"]["without_gradient"])) / 100 for each in runs.values()])
        if arm in ARMS
        else "–"
        for arm, runs in shown.items()
    ]
    yield f"| questions without gradient | {' | '.join(values)} |"
    yield from ("", "| paired differences, points | pass@1 | pass@32 | other wordings, pass@1 | pass@32 |")
    yield "|---|---|---|---|---|"
    other = "grpo_matched"
    for arm in (arm for arm in shown if arm not in ("untrained", other)):
        both = sorted(by_arm[arm].keys() & by_arm[other].keys())
        cells = [
            told([by_arm[arm][s]["pass@k"][split][k] - by_arm[other][s]["pass@k"][split][k] for s in both])
            for split, k in product(("test_id", "test_phrasing"), ("1", "32"))
        ]
        yield f"| {titles[arm]} − {titles[other]} | {' | '.join(cells)} |"


def main() -> None:
    """Console entry point."""
    step = sys.argv[1]
    if step == "rates":
        run([(arm, rate, RATE_SEED) for rate, arm in product(RATES, ARMS)], VALIDATION)
    elif step == "train":
        rates = chosen(results())
        if missing := ARMS.keys() - rates:
            sys.exit(
                f"Expected a learning rate of each arm, but not of {', '.join(sorted(missing))}: run `rates` first."
            )
        run([(arm, rate, seed) for seed in SEEDS for arm, rate in {"untrained": "0", **rates}.items()], ())
    else:
        write_section("training", section(results()))


if __name__ == "__main__":
    main()
