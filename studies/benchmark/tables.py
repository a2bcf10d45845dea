"""The digest as tables [seeds, questions], which the benchmark is computed from."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from tagrpo.metrics.functional import exact_pass_at_k, pass_at_k

SETTINGS = ("arithmetic/mixed", "shortest_path/easy", "countdown/easy")
"""Those of the benchmark, as `<task>/<regime>`."""
BASE = "base"
"""The method that does not train: its runs hold the policy that those of the same seed begin with."""


@dataclass(frozen=True)
class Setting:
    """The runs of one task in one of its regimes."""

    runs: Sequence[Mapping[str, Any]]
    """Entries of the digest, as `digest.entry_of` describes them."""

    @property
    def methods(self) -> list[str]:
        """In the order of the digest."""
        return list(dict.fromkeys(run["method"] for run in self.runs))

    def of(self, method: str) -> list[Mapping[str, Any]]:
        """The seeds of one method; a KeyError without any."""
        found = [run for run in self.runs if run["method"] == method]
        if not found:
            raise KeyError(f"Expected runs of {method}, but there are only {', '.join(self.methods)}.")
        return found

    def pass_at_k(self, method: str, k: int, split: str) -> pd.DataFrame:
        """[seeds, questions] pass@k, exact or without bias, over the test questions of a split."""
        found = {run["seed"]: _pass_at_k(run["success"][split], run["n"], k) for run in self.of(method)}
        return pd.DataFrame(list(found.values()), list(found))


def gains(settings: Mapping[str, Setting], method: str, k: int, split: str) -> dict[str, pd.DataFrame]:
    """Setting → [seeds, questions] pass@k of a method − that of the untrained policy that its runs began with."""
    return {
        name: paired(setting.pass_at_k(method, k, split), setting.pass_at_k(BASE, k, split))
        for name, setting in settings.items()
        if method in setting.methods
    }


def paired(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """Ours − theirs at the seeds that both have."""
    seeds = ours.index.intersection(theirs.index)
    return ours.loc[seeds] - theirs.loc[seeds]


def _pass_at_k(values: Sequence[float], n: int, k: int) -> list[float]:
    if not n:
        return exact_pass_at_k(torch.tensor(values, dtype=torch.float64), (k,))[:, 0].tolist()
    correct = torch.tensor(values)
    return pass_at_k(torch.full_like(correct, n), correct, k).tolist()


def experiment_of(command: str) -> str:
    """The experiment that a run's command names.

    >>> experiment_of("python -m tagrpo.cli.train name=k8 experiment=pass_at_k advantage.k=8")
    'pass_at_k'
    """
    return next(part for part in shlex.split(command) if part.startswith("experiment=")).removeprefix("experiment=")


def setting_of(run: Mapping[str, Any]) -> str:
    """The task in its regime."""
    return f"{run['task']}/{run['regime']}"


def settings_of(entries: Sequence[Mapping[str, Any]]) -> dict[str, Setting]:
    """`<task>/<regime>` → its runs."""
    names = dict.fromkeys(map(setting_of, entries))
    return {name: Setting([entry for entry in entries if setting_of(entry) == name]) for name in names}
