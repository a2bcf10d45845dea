"""The digest of the study as tables: verdicts, explanations and figures are computed from these alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from studies.runs import MethodRuns
from tagrpo.files import write_text
from tagrpo.metrics.functional import pass_at_k


class Regime(MethodRuns):
    """The runs of one regime as tables."""

    def pass_at_k(self, method: str, k: int, split: str | None = None) -> pd.DataFrame:
        """[seeds, questions] unbiased pass@k, over the questions of all splits or of one."""
        rows = {}
        for run in self.of(method):
            correct = {s: counts for s, counts in run["correct"].items() if split in (None, s)}
            flat = torch.tensor([count for counts in correct.values() for count in counts])
            names = [(s, i) for s, counts in correct.items() for i in range(len(counts))]
            rows[run["seed"]] = dict(
                zip(names, pass_at_k(torch.full_like(flat, run["n"]), flat, k).tolist(), strict=True)
            )
        return pd.DataFrame(rows).T

    def series(self, method: str, name: str, part: str = "all") -> pd.DataFrame:
        """[seeds, iterations] of a scalar, `diversity/<pool>` or `hard_share`, at the iterations that all seeds have.

        Args:
            method: Of this method.
            name: Of the scalar.
            part: `all`; or `first` or `last`, the iterations of that quarter of training, numbered from 0.
        """
        rows = {}
        for run in self.of(method):
            kind, _, pool = name.partition("/")
            found = run["hard_share"] if name == "hard_share" else run["series"].get(name, {})
            found = run["diversity"].get(pool, {}) if kind == "diversity" else found
            rows[run["seed"]] = {int(i): x for i, x in found.items() if in_part(int(i), run["ledger"], part)}
        table = pd.DataFrame(rows).T
        table = table.sort_index(axis=1).dropna(axis=1)
        return table if part == "all" else table.set_axis(range(table.shape[1]), axis=1)

    def quarters(self, method: str, name: str) -> pd.DataFrame:
        """[seeds, 2] means of a scalar over the first and the last quarter of training; empty where it was not kept."""
        return pd.DataFrame({c["seed"]: c["quarters"][name] for c in self.of(method) if name in c["quarters"]}).T

    def gradients(self, method: str, stage: str, kind: str) -> pd.DataFrame:
        """[seeds, names] of the digest's `gradients`; empty where they were not taken."""
        found = {run["seed"]: run["gradients"].get(stage, {}).get(kind, {}) for run in self.of(method)}
        return pd.DataFrame(found).T.dropna(axis=1)


def in_part(iteration: int, ledger: Mapping[str, int], part: str) -> bool:
    """Whether an iteration lies in a part of the training of the run with this ledger."""
    total = ledger["iterations"]
    return {"all": True, "first": iteration < total / 4, "last": iteration >= total * 3 / 4}[part]


def load(path: Path) -> dict[str, Any]:
    """Read a digest that `write` wrote."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def write(content: Mapping[str, Any], path: Path) -> None:
    """Write a digest with one line per run, so that a changed run shows as one changed line."""
    regimes = {
        name: "[\n" + ",\n".join("   " + json.dumps(run) for run in runs) + "\n  ]"
        for name, runs in content["regimes"].items()
    }
    body = ",\n".join(f"  {json.dumps(name)}: {runs}" for name, runs in regimes.items())
    rest = {key: value for key, value in content.items() if key != "regimes"}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in rest.items()]
    write_text(path, "{\n" + ",\n".join([*lines, f' "regimes": {{\n{body}\n }}']) + "\n}\n")


def ordered(content: Mapping[str, Any], order: Sequence[str]) -> dict[str, Regime]:
    """Name → regime, methods in the given order."""
    regimes = {}
    for name, runs in content["regimes"].items():
        rank = {method: position for position, method in enumerate(order)}
        regimes[name] = Regime(sorted(runs, key=lambda run: (rank.get(run["method"], len(rank)), run["seed"])))
    return regimes
