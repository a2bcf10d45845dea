"""The numbers of a comparison: estimates, differences, budgets, and what else the methods differ in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from .runs import RunFiles, pass_at_k_table, scalar_table
from .statistics import Comparison, Difference, Estimate, difference, estimate, holm

Runs = Mapping[str, Sequence[RunFiles]]
"""Method → its runs, one per seed."""
Curves = Mapping[str, Mapping[str, Mapping[int, Estimate]]]
"""Split → method → k → estimate."""
ZERO_GRADIENT = "zero_gradient/percentage"
SERIES_PREFIXES = ("zero_gradient/", "uniform_reward/")
BUDGET_COLUMNS = ("budget/rollouts", "budget/tokens", "budget/updates")


def trained_methods(runs: Runs) -> list[str]:
    """Methods whose runs made optimizer steps; the others only evaluated."""
    return [method for method, seeds in runs.items() if seeds[0].ledger["updates"]]


def splits_and_ks(runs: Runs) -> dict[str, list[int]]:
    """Split → the k that every run has an estimate for; splits that some run lacks are left out.

    Raises:
        ValueError: no split is common to all runs.
    """
    tests = [run.test for seeds in runs.values() for run in seeds]
    shared = [split for split in tests[0] if all(split in test for test in tests)]
    if not shared:
        raise ValueError(f"Expected a test split that all runs share, but got {sorted({s for t in tests for s in t})}.")
    return {
        split: sorted(set.intersection(*({int(k) for k in test[split]["pass_at_k"]} for test in tests)))
        for split in shared
    }


def pass_at_k_estimates(runs: Runs) -> dict[str, dict[str, dict[int, Estimate]]]:
    """Split → method → k → mean with its interval over questions and seeds."""
    return {
        split: {method: {k: estimate(pass_at_k_table(seeds, split, k)) for k in ks} for method, seeds in runs.items()}
        for split, ks in splits_and_ks(runs).items()
    }


def pass_table(curves: Curves, k: int) -> pd.DataFrame:
    """Pass@k with its interval by method and split (TA-GRPO, Table 1), in percent as text; and the mean over splits."""
    frame = pd.DataFrame({split: {m: points[k] for m, points in methods.items()} for split, methods in curves.items()})
    average = frame.map(lambda e: 100 * e.value).mean(axis=1).map("{:.1f}".format)
    return frame.map(str).assign(average=average)


def pass_at_k_gains(runs: Runs, baseline: str) -> dict[str, dict[str, dict[int, Estimate]]]:
    """Split → method → k → paired difference from `baseline`, for methods that share a seed with it."""
    gains: dict[str, dict[str, dict[int, Estimate]]] = {}
    for split, ks in splits_and_ks(runs).items():
        theirs = {k: pass_at_k_table(runs[baseline], split, k) for k in ks}
        gains[split] = {
            method: {k: difference(pass_at_k_table(seeds, split, k), theirs[k]).estimate for k in ks}
            for method, seeds in runs.items()
            if method != baseline and _share_a_seed(seeds, runs[baseline])
        }
    return gains


def compare_methods(runs: Runs) -> list[Comparison]:
    """Each method against each one before it.

    In pass@k at the smallest and the largest k of every split, and in the share of questions without gradient, which
    is paired over iterations: these have the same questions under the same seed. Methods without a common seed are
    not compared. P-values are corrected over everything that is returned.
    """
    raw = [
        (method, baseline, quantity, found)
        for later, method in enumerate(runs)
        for baseline in list(runs)[:later]
        if _share_a_seed(runs[method], runs[baseline])
        for quantity, found in _differences(runs, method, baseline)
    ]
    corrected = holm([found.p_value for *_, found in raw])
    return [
        Comparison(method, baseline, quantity, found.estimate, p_value, found.seeds)
        for (method, baseline, quantity, found), p_value in zip(raw, corrected, strict=True)
    ]


def _share_a_seed(ours: Sequence[RunFiles], theirs: Sequence[RunFiles]) -> bool:
    return bool({run.seed for run in ours} & {run.seed for run in theirs})


def _differences(runs: Runs, method: str, baseline: str) -> Iterator[tuple[str, Difference]]:
    for split, ks in splits_and_ks(runs).items():
        for k in sorted({ks[0], ks[-1]}):
            ours, theirs = (pass_at_k_table(runs[m], split, k) for m in (method, baseline))
            yield f"pass@k/{split}/{k}", difference(ours, theirs)
    ours, theirs = (scalar_table(runs[m], ZERO_GRADIENT) / 100 for m in (method, baseline))
    shared = ours.columns.intersection(theirs.columns)
    if len(shared):
        yield ZERO_GRADIENT, difference(ours[shared], theirs[shared])


def results_of(runs: Runs, curves: Curves, comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Everything as plain data: per method and seed, over seeds, and the comparisons; null for what is not finite."""
    pooled = {
        split: {m: {str(k): e.as_dict() for k, e in points.items()} for m, points in methods.items()}
        for split, methods in curves.items()
    }
    results = {
        "cells": [cell_results(run) for seeds in runs.values() for run in seeds],
        "pass_at_k": pooled,
        "comparisons": [c.as_dict() for c in comparisons],
    }
    return finite(results)


def finite(value: Any) -> Any:
    """`value` with None for infinities and what is not a number: JSON has no words for them."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def cell_results(run: RunFiles) -> dict[str, Any]:
    """One method and seed: every pass@k with its n and interval, the zero-gradient series, budgets, seconds.

    `series` holds one list per scalar, all as long as `iteration`; null where a scalar was not logged.
    """
    metrics = run.metrics
    logged = metrics[[c for c in metrics if str(c).startswith(SERIES_PREFIXES) or c in BUDGET_COLUMNS]]
    series = {name: [float(x) for x in logged[name]] for name in logged}
    splits = {}
    for split, test in run.test.items():
        n = int(run.counts(split)["n"].min())
        splits[split] = {
            "num_questions": test["num_questions"],
            "pass_at_k": {k: {"n": n, **interval} for k, interval in test["pass_at_k"].items()},
            **{name: test[name] for name in ("majority", "wrong_answers") if name in test},
        }
    return {
        "method": run.method,
        "seed": run.seed,
        "path": str(run.path),
        "splits": splits,
        "series": {"iteration": [int(i) for i in metrics.index], **series} if len(metrics) else {},
        "budget": run.ledger,
        "seconds": seconds_of(run),
        "versions": run.versions,
    }


def seconds_of(run: RunFiles) -> float:
    """Wall seconds of all training iterations."""
    seconds = run.scalar("seconds/iteration")
    return 0.0 if seconds is None else float(seconds.sum())


def differing_settings(runs: Runs) -> dict[str, dict[str, Any]]:
    """Setting → method → value, for the settings in which the methods' first seeds differ.

    Left out: the name, the seed, paths inside the run directory, and settings that repeat a shorter-named one.
    """
    flat = {method: _flatten(seeds[0].config) for method, seeds in runs.items()}
    for settings in flat.values():
        home = str(settings.get("trainer.default_root_dir", "\0"))
        for name in [n for n, value in settings.items() if n in ("name", "seed") or str(value).startswith(home)]:
            del settings[name]
    differing: dict[str, dict[str, Any]] = {}
    for name in sorted({name for settings in flat.values() for name in settings}, key=lambda n: (n.count("."), n)):
        row = {method: settings.get(name) for method, settings in flat.items()}
        last = name.rpartition(".")[2]
        repeats = any(other.rpartition(".")[2] == last and row == values for other, values in differing.items())
        if not repeats and any(value != next(iter(row.values())) for value in row.values()):
            differing[name] = row
    return differing


def _flatten(settings: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(settings, dict):
        return {prefix: settings}
    return {
        name: value
        for key, part in settings.items()
        for name, value in _flatten(part, f"{prefix}.{key}" if prefix else str(key)).items()
    }
