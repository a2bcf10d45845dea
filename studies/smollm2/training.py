"""Training SmolLM2-135M on products in several wordings: a check on a real model, no test of the methods.

    python -m studies.smollm2.training rates     # each arm with each learning rate, on seed 100 and validation questions
    python -m studies.smollm2.training train     # each arm with its rate, on the seeds that are reported
    python -m studies.smollm2.training gaps      # two arms again on the same questions, which are asked before and after
    python -m studies.smollm2.training page      # the tables of README.md, from the results kept beside this file

All arms are those of `make demo-lm`, and Pass@k training; runs last 18 iterations. A finished run is a line of
`training.jsonl`; the same command goes on where it was interrupted. An arm's learning rate is the one with the best
pass@1 on validation questions.

Expected, written down before the first run: (1) all arms end above the untrained model in pass@1 of both tests;
(2) TA-GRPO leaves fewer questions without gradient than GRPO with as many samples; (3) TA-GRPO is ahead of GRPO with
as many samples in pass@1 of wordings that are not trained; (4) with so few seeds no difference in pass@32 is told
from noise.

Expected of `gaps`, written down before its first run; the law of the third study, question by question. A question's
gap is the success of the untrained model on its three rephrasings minus that on the question. (5) What TA-GRPO gains
over GRPO with as many samples, on the questions that both train on, rises with the gap. (6) The mean gap is within two
points of 0, all wordings being drawn alike, and TA-GRPO does not gain in pass@32 there. The slope has one number per
seed. In the responses of `premise.py` gaps spread by 7.2 points, of which 64 responses to each prompt make 3.1: slopes
are flattened by a fifth, and four seeds tell one of 5 points per ten points of gap at best.
"""

import csv
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from scipy import stats

from tagrpo.analysis.plots import finished, panels, save, styled
from tagrpo.analysis.sections import table
from tagrpo.files import write_section
from tagrpo.lab.tasks.multiplication import MultiplicationSource
from tagrpo.metrics.functional import pass_at_k
from tagrpo.runs.grid import run_grid
from tagrpo.study.compare import Method, runs_of
from tagrpo.types import QuestionGroup

Array = NDArray[np.float64]

ARMS: Mapping[str, str] = {
    "grpo": "GRPO",
    "grpo_matched": "GRPO, as many samples",
    "ta_grpo": "TA-GRPO",
    "pass_at_k": "Pass@k training",
}
RATES, RATE_SEED, SEEDS = ("2e-5", "4e-5", "1e-5"), 100, range(4)
RESPONSES = 64
"""To each prompt, of `gaps`."""
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
ASKED = (
    "~data.evaluation.test_id",
    "~data.evaluation.test_phrasing",
    "data.train.num_rephrasings=3",
    f"data.evaluation_samples={RESPONSES}",
)
ORIGINALS, EVERY_WORDING = (
    f"+data.evaluation.asked={{_target_: {source}, split: train, size: 48, seed: ${{seed}}}}"
    for source in (
        "tagrpo.lab.tasks.multiplication.MultiplicationSource",
        "studies.smollm2.training.Wordings",
    )
)
ROOT, KEPT = Path("runs/smollm2"), Path(__file__).with_suffix(".jsonl")
PAGE = Path(__file__).with_name("README.md")
OF_GAPS = ROOT / "gaps", KEPT.with_name("gaps.jsonl")
ROWS = {
    f"{words}, pass@{k}": (split, k)
    for split, words in {"test_id": "test", "test_phrasing": "other wordings"}.items()
    for k in ("1", "32")
}
"""Of the tables → split and k."""
Result = Mapping[str, Any]
"""A finished run: arm, rate, seed, `pass@k` of each split, `course` of metrics over the iterations; of `gaps`, also
`asked`, prompt → how many of its responses are correct."""
COURSE = {
    "without_gradient": "zero_gradient/percentage",
    "entropy": "rollout/entropy",
    "correct": "rollout/correct_original",
    "distance": "embedding_distance/pool",
}


class Wordings(MultiplicationSource):
    """All wordings of every question, the original first, as questions of their own: `<id>/0`, `<id>/1`, …."""

    def load(self) -> list[QuestionGroup]:
        """Read them."""
        told = ((group, enumerate((group.question, *group.rephrasings))) for group in super().load())
        return [
            g._replace(id=f"{g.id}/{n}", question=text, rephrasings=())
            for g, texts in told
            for n, text in texts
        ]


def results(file: Path = KEPT) -> list[dict[str, Any]]:
    """The runs that have finished, in their order."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def result(arm: str, rate: str, seed: int, folder: Path) -> dict[str, Any]:
    """What is kept of a run."""
    tested = json.loads((folder / "test.json").read_text())
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    course = {
        name: [round(float(row[key]), 4) for row in rows if row.get(key)] for name, key in COURSE.items()
    }
    passed = {
        split: {k: round(each["value"], 6) for k, each in found["pass_at_k"].items()}
        for split, found in tested["splits"].items()
    }
    asked = tested["splits"].get("asked", {"questions": ()})["questions"]
    found = {"asked": {row["id"]: row["correct"] for row in asked}} if asked else {}
    return {"arm": arm, "rate": rate, "seed": seed, "pass@k": passed, "course": course, **found}


def run(
    cells: Sequence[tuple[str, str, int]], overrides: Sequence[str], root: Path = ROOT, kept: Path = KEPT
) -> None:
    """Run the (arm, rate, seed) that have not finished, one after the other, and keep what they found."""
    known = {(each["arm"], each["rate"], each["seed"]) for each in results(kept)}
    for arm, rate, seed in cells:
        if (arm, rate, seed) in known:
            continue
        own = ["experiment=grpo", "iterations=0"] if arm == "untrained" else [f"experiment={arm}", TRAINED]
        method = Method([*own, f"optimizer.lr={rate}"])
        grid = runs_of(root, {f"{arm}_{rate}": method}, [seed], [*COMMON, *overrides])
        if run_grid(grid, {"cluster": "local", "timeout_min": 525600}, [{}], Console()):
            sys.exit(grid[0].log_tail())
        with kept.open("a") as file:
            file.write(json.dumps(result(arm, rate, seed, grid[0].directory)) + "\n")
        shutil.rmtree(grid[0].directory / "checkpoints", ignore_errors=True)


def chosen(found: Sequence[Result]) -> dict[str, str]:
    """Arm → its learning rate: the best pass@1 on validation questions."""
    tried = {arm: [each for each in found if (each["arm"], each["seed"]) == (arm, RATE_SEED)] for arm in ARMS}
    return {arm: max(runs, key=_validated)["rate"] for arm, runs in tried.items() if runs}


def _validated(each: Result) -> float:
    return float(each["pass@k"]["validation"]["1"])


def interval(values: Sequence[float] | Array) -> tuple[Array, Array]:
    """Mean over seeds, the first axis, in percent, and half of its 95 % interval by Student's t."""
    percent = 100 * np.asarray(values, dtype=np.float64)
    return percent.mean(0), stats.t.ppf(0.975, len(percent) - 1) * stats.sem(percent)


def told(values: Sequence[float]) -> str:
    """The `interval` in words; of one seed its value alone."""
    if len(values) < 2:
        return f"{100 * values[0]:.1f}"
    mean, half = interval(values)
    return f"{mean:.1f} [{mean - half:.1f}, {mean + half:.1f}]"


def section(found: Sequence[Result]) -> Iterator[str]:
    """The tables, line by line."""
    rates, other = chosen(found), "grpo_matched"
    tried = {
        (each["arm"], each["rate"]): f"{100 * _validated(each):.1f}"
        for each in found
        if each["seed"] == RATE_SEED
    }
    rows = [
        [name, *(tried.get((arm, rate), "–") for rate in RATES), rates.get(arm, "–")]
        for arm, name in ARMS.items()
    ]
    yield from table(["validation, pass@1 in %", *RATES, "chosen"], rows)
    titles = {"untrained": "untrained", **ARMS}
    by_arm = {arm: {run["seed"]: run for run in found if run["arm"] == arm} for arm in titles}
    runs = {arm: kept for arm, of in by_arm.items() if (kept := {n: of[n] for n in of if n != RATE_SEED})}
    if not runs:
        return
    rows = [[row, *(told([passed(run, row) for run in of.values()]) for of in runs.values())] for row in ROWS]
    silent = {
        arm: [np.mean(run["course"]["without_gradient"]) / 100 for run in runs.get(arm, {}).values()]
        for arm in ARMS
    }
    rows.append(["questions without gradient", *(told(silent[arm]) if arm in ARMS else "–" for arm in runs)])
    yield from ("", *table(["%", *(f"{titles[arm]} ({len(of)} seeds)" for arm, of in runs.items())], rows))
    rows = []
    for arm in (arm for arm in runs if arm not in ("untrained", other)):
        both = [
            (runs[arm][seed], runs[other][seed]) for seed in sorted(runs[arm].keys() & runs[other].keys())
        ]
        cells = (told([passed(ours, row) - passed(theirs, row) for ours, theirs in both]) for row in ROWS)
        rows.append([f"{titles[arm]} − {titles[other]}", *cells])
    yield from ("", *table(["paired differences, points", *ROWS], rows))


def passed(run: Result, row: str) -> float:
    """Pass@k of a run in one of `ROWS`."""
    split, k = ROWS[row]
    return float(run["pass@k"][split][k])


def by_question(found: Sequence[Result], k: int) -> dict[int, Array]:
    """Seed → [2, Q]: gap of each training question; pass@k of TA-GRPO − as many samples on it, in its own wording."""
    asked = {(each["arm"], each["seed"]): each["asked"] for each in found}
    numbers = {}
    for seed in sorted({seed for _, seed in asked}):
        start, theirs, ours = (asked[arm, seed] for arm in ("untrained", "grpo_matched", "ta_grpo"))
        rates = np.array([[start[f"{id}/{n}"] for n in range(4)] for id in ours]) / RESPONSES
        before, after = (
            pass_at_k(RESPONSES, torch.tensor([side[id] for id in ours]), k) for side in (theirs, ours)
        )
        numbers[seed] = np.stack([rates[:, 1:].mean(1) - rates[:, 0], after - before])
    return numbers


def gaps_section(found: Sequence[Result]) -> Iterator[str]:
    """The table on gaps, line by line."""
    gap, *gains = (list(by_question(found, k).values()) for k in (1, 1, 8, 32))
    means = [told([float(of[1].mean()) for of in seeds]) for seeds in gains]
    rises = [told([stats.linregress(*of).slope / 10 for of in seeds]) for seeds in gains]
    rows = [[f"TA-GRPO − {ARMS['grpo_matched']}", *means], ["… its rise per ten points of gap", *rises]]
    yield from table(["points", "pass@1", "pass@8", "pass@32"], rows)
    spread = told([float(of[0].std(ddof=1)) for of in gap])
    yield from (
        "",
        f"Gaps: mean {told([float(of[0].mean()) for of in gap])}, standard deviation {spread} points.",
    )


@styled
def dose(found: Sequence[Result]) -> Figure:
    """Pass@1 and pass@32 of TA-GRPO − as many samples by the gap: thirds of each seed's questions, 95 % t-intervals."""
    figure, axes = panels(2)
    for axis, k in zip(axes, (1, 32), strict=True):
        ordered = [of[:, of[0].argsort()] for of in by_question(found, k).values()]
        seeds = np.array(
            [[part.mean(1) for part in np.array_split(of, 3, axis=1)] for of in ordered]
        )  # [S, 3, 2]
        axis.errorbar(100 * seeds[..., 0].mean(0), *interval(seeds[..., 1]), marker="o")
        axis.axhline(0, color="0.3", linewidth=0.8, zorder=0)
        axis.set(title=f"pass@{k}", xlabel="gap: rephrasings − question, points")
    return finished(figure, axes, "TA-GRPO − as many samples, points")


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
    elif step == "gaps":
        rates = chosen(results())
        for seed in SEEDS:
            run([("untrained", "0", seed)], [*ASKED, EVERY_WORDING], *OF_GAPS)
            run(
                [(arm, rates[arm], seed) for arm in ("grpo_matched", "ta_grpo")],
                [*ASKED, ORIGINALS],
                *OF_GAPS,
            )
    else:
        write_section(PAGE, "training", "\n".join(section(results())))
        if found := results(OF_GAPS[1]):
            write_section(PAGE, "gaps", "\n".join(gaps_section(found)))
            save(dose(found), PAGE.with_name("gaps.png"))


if __name__ == "__main__":
    main()
