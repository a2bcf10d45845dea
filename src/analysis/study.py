"""What a study measured, as one file of numbers: everything that its verdicts are made of, cell by cell.

A study is a set of comparisons of the same methods, one per regime: `<root>/<regime>/<method>/seed<k>/`. The digest is
small enough to be kept with the code, so that a page of verdicts can be written again, and checked, without the runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from ..metrics.functional import pass_at_k
from .comparison import seconds_of
from .replay import read_rollouts
from .runs import RunFiles, find_runs

SERIES = (
    "zero_gradient/percentage",
    "variant/difficulty_variance",
    "rollout/correct_original",
    "rollout/correct_neighbours",
    "rollout/entropy",
    "train/grad_norm",
)
DIGITS = 6


def digest(root: Path) -> dict[str, Any]:
    """Read the runs of a study.

    Returns:
        `regimes`: regime → list of cells, ordered by method and seed, each with `method`, `seed`, `command`, `ledger`,
        `seconds`, `n` (responses per test question), `correct` (split → correct responses, in the order of
        `questions`), `series` (scalar → one number per iteration, null where there is none), `diversity` (pool →
        iteration → mean distance over questions) and `hard_share` (one number per iteration, see `hard_share`);
        `questions`: regime → split → ids; `versions`.

    Raises:
        FileNotFoundError: there are no runs.
    """
    regimes: dict[str, list[dict[str, Any]]] = {}
    questions: dict[str, dict[str, list[str]]] = {}
    versions: dict[str, str] = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir() and any(path.rglob("test.json"))):
        runs = find_runs(folder)
        questions[folder.name] = {split: list(runs[0].counts(split).index) for split in runs[0].test}
        regimes[folder.name] = [_cell(run, questions[folder.name]) for run in runs]
        versions |= runs[0].versions
    if not regimes:
        raise FileNotFoundError(f"Expected <regime>/<method>/seed<k>/test.json under {root}, but found none.")
    return {"regimes": regimes, "questions": questions, "versions": versions}


def _cell(run: RunFiles, questions: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    counts = {split: run.counts(split).loc[list(ids)] for split, ids in questions.items()}
    series = {name: run.scalar(name) for name in SERIES}
    distances = run.diversity.groupby(["pool", "iteration"])["distance"].mean()
    return {
        "method": run.method,
        "seed": run.seed,
        "command": run.command,
        "ledger": run.ledger,
        "seconds": round(seconds_of(run), 1),
        "n": int(next(iter(counts.values()))["n"].iloc[0]),
        "correct": {split: [int(c) for c in table["correct"]] for split, table in counts.items()},
        "series": {
            name: {str(i): _short(x) for i, x in values.items()}
            for name, values in series.items()
            if values is not None
        },
        "diversity": {
            str(pool): {str(i): _short(x) for i, x in distances[pool].items()}
            for pool in distances.index.unique("pool")
        },
        "hard_share": {str(i): _short(x) for i, x in hard_share(run).items()},
    }


def _short(number: float) -> float:
    return float(f"{float(number):.{DIGITS}g}")


def hard_share(run: RunFiles) -> pd.Series:
    """Per iteration, the share of Σ|A| that falls on questions of which fewer than half of the responses are correct.

    Where the effort of an update goes: η of Pass@k training (arXiv 2508.10751, Eq. 16) as a method meets it in its own
    run. Empty for a run whose rollouts were not recorded.
    """
    if not (run.path / "rollouts").is_dir():
        return pd.Series(dtype=float)
    rows = read_rollouts(run.path)
    rows["effort"] = rows["advantage"].abs()
    by_question = rows.groupby(["iteration", "question"]).agg(effort=("effort", "sum"), rate=("correct", "mean"))
    hard = by_question["effort"].where(by_question["rate"] < 0.5, 0.0).groupby(level="iteration").sum()
    total = by_question["effort"].groupby(level="iteration").sum()
    return (hard / total).dropna()


@dataclass(frozen=True)
class Cells:
    """The cells of one regime as tables."""

    cells: Sequence[Mapping[str, Any]]

    @cached_property
    def methods(self) -> list[str]:
        """In the order of the digest."""
        return list(dict.fromkeys(cell["method"] for cell in self.cells))

    def of(self, method: str) -> list[Mapping[str, Any]]:
        """The seeds of one method.

        Raises:
            KeyError: there is no such method.
        """
        found = [cell for cell in self.cells if cell["method"] == method]
        if not found:
            raise KeyError(f"Expected cells of {method}, but there are only {', '.join(self.methods)}.")
        return found

    def pass_at_k(self, method: str, k: int, split: str | None = None) -> pd.DataFrame:
        """[seeds, questions] unbiased pass@k, over the questions of all splits or of one."""
        rows = {}
        for cell in self.of(method):
            correct = {s: counts for s, counts in cell["correct"].items() if split in (None, s)}
            flat = torch.tensor([count for counts in correct.values() for count in counts])
            names = [(s, i) for s, counts in correct.items() for i in range(len(counts))]
            rows[cell["seed"]] = dict(
                zip(names, pass_at_k(torch.full_like(flat, cell["n"]), flat, k).tolist(), strict=True)
            )
        return pd.DataFrame(rows).T

    def series(self, method: str, name: str, part: str = "all") -> pd.DataFrame:
        """[seeds, iterations] of a scalar, a pool's `diversity/<pool>` or `hard_share`; iterations that all seeds have.

        Args:
            method: Whose.
            name: What.
            part: `all`, `first` or `last`: iterations of the first or the last quarter, numbered from 0.
        """
        rows = {}
        for cell in self.of(method):
            kind, _, pool = name.partition("/")
            found = cell["hard_share"] if name == "hard_share" else cell["series"].get(name, {})
            found = cell["diversity"].get(pool, {}) if kind == "diversity" else found
            rows[cell["seed"]] = {int(i): x for i, x in found.items() if in_part(int(i), cell, part)}
        table = pd.DataFrame(rows).T
        table = table.sort_index(axis=1).dropna(axis=1)
        return table if part == "all" else table.set_axis(range(table.shape[1]), axis=1)


def in_part(iteration: int, cell: Mapping[str, Any], part: str) -> bool:
    """Whether an iteration lies in a part of its run's training."""
    total = cell["ledger"]["iterations"]
    return {"all": True, "first": iteration < total / 4, "last": iteration >= total * 3 / 4}[part]


def load(path: Path) -> dict[str, Any]:
    """A digest that `write` wrote."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def write(content: Mapping[str, Any], path: Path) -> None:
    """Keep a digest, one line per cell."""
    regimes = {
        name: "[\n" + ",\n".join("   " + json.dumps(cell) for cell in cells) + "\n  ]"
        for name, cells in content["regimes"].items()
    }
    body = ",\n".join(f"  {json.dumps(name)}: {cells}" for name, cells in regimes.items())
    rest = {key: value for key, value in content.items() if key != "regimes"}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in rest.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join([*lines, f' "regimes": {{\n{body}\n }}']) + "\n}\n", encoding="utf-8")


def ordered(content: Mapping[str, Any], order: Sequence[str]) -> dict[str, Cells]:
    """Regime → cells, methods in the given order."""
    regimes = {}
    for name, cells in content["regimes"].items():
        rank = {method: position for position, method in enumerate(order)}
        regimes[name] = Cells(sorted(cells, key=lambda cell: (rank.get(cell["method"], len(rank)), cell["seed"])))
    return regimes
