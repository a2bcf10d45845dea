"""Reading run directories."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml

from ..metrics.functional import pass_at_k


@dataclass(frozen=True)
class RunFiles:
    """One run: a method, a seed, and the files that training and evaluation left."""

    method: str
    seed: int
    path: Path

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """One row per iteration, one column per logged scalar; empty for a run that only evaluated."""
        path = self.path / "metrics.csv"
        if not path.exists():
            return pd.DataFrame()
        try:
            frame = pd.read_csv(path)
        except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
            raise ValueError(
                f"Expected a table in {path}, but it can't be read: {error}. Run the cell again."
            ) from error
        if "rollout/reward" not in frame:
            return frame.iloc[:0]
        return frame.dropna(subset=["rollout/reward"]).reset_index(drop=True)

    @cached_property
    def test(self) -> dict[str, Any]:
        """Split → summary with `pass_at_k`, `majority`, `wrong_answers` and the counts of every question."""
        return self._json("test.json")["splits"]

    @cached_property
    def ledger(self) -> dict[str, int]:
        """Totals of the training: prompts, rollouts, tokens, updates, iterations; zeros for a run without any."""
        if not (self.path / "ledger.json").exists():
            return dict.fromkeys(("prompts", "rollouts", "tokens", "updates", "iterations"), 0)
        return self._json("ledger.json")

    @cached_property
    def diversity(self) -> pd.DataFrame:
        """One row per measured question and pool: iteration, question, pool, responses, distance."""
        path = self.path / "embedding_diversity.csv"
        return pd.read_csv(path) if path.exists() else pd.DataFrame()

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration."""
        return yaml.safe_load((self.path / "config.yaml").read_text())

    def counts(self, split: str) -> pd.DataFrame:
        """`n` and `correct` of each question of a test split, indexed by question id."""
        return pd.DataFrame(self.test[split]["questions"]).set_index("id")[["n", "correct"]]

    def pass_at_k(self, split: str, k: int) -> pd.Series:
        """Unbiased pass@k of each question of a test split, indexed by question id."""
        counts = self.counts(split)
        values = pass_at_k(torch.tensor(counts["n"].to_numpy()), torch.tensor(counts["correct"].to_numpy()), k)
        return pd.Series(values.numpy(), counts.index)

    def _json(self, name: str) -> Any:
        path = self.path / name
        try:
            return json.loads(path.read_text())
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"Expected {name} in {self.path}, but there is none: the run has not finished. Run the cell again."
            ) from error
        except json.JSONDecodeError as error:
            raise ValueError(f"Expected JSON in {path}, but line {error.lineno} is not. Run the cell again.") from error


def find_runs(root: Path) -> list[RunFiles]:
    """All finished runs `<root>/<method>/seed<k>/`, ordered by method and seed.

    Raises:
        FileNotFoundError: there is none.
    """
    runs = [
        RunFiles(path.parent.parent.name, int(path.parent.name.removeprefix("seed")), path.parent)
        for path in root.glob("*/seed*/test.json")
    ]
    if not runs:
        raise FileNotFoundError(
            f"Expected runs `<method>/seed<k>/test.json` under {root}, but found none. Run tagrpo-compare first."
        )
    return sorted(runs, key=lambda run: (run.method, run.seed))


def by_method(runs: Iterable[RunFiles], order: Iterable[str]) -> dict[str, list[RunFiles]]:
    """Method → its runs; methods in the given order, those not named after them."""
    groups: dict[str, list[RunFiles]] = {}
    for run in runs:
        groups.setdefault(run.method, []).append(run)
    named = [method for method in order if method in groups]
    return {method: groups[method] for method in [*named, *(m for m in groups if m not in named)]}
