"""The figures of a page as data: panels of series, each point of which can be opened.

A series of training names a run and a scalar, whose numbers stand in the run's block `iterations`. Others have their
numbers with them: `x`, `y`, and intervals `low`, `high`; `evaluation` (a split) or `questions` say what a point opens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..analysis.comparison import ZERO_GRADIENT, Methods
from ..analysis.runs import RunFiles
from ..analysis.statistics import Estimate
from ..lab.exact_plots import KS, success_of
from ..metrics.functional import CAUSES, exact_pass_at_k

SERIES = {
    ZERO_GRADIENT: "no gradient (all advantages zero)",
    "uniform_reward/original": "equal rewards: original (G)",
    "uniform_reward/rephrasings": "equal rewards: rephrasings (N·G)",
    "uniform_reward/rephrasings_matched": "equal rewards: G of the rephrasings",
}
LEARNING = {
    "rollout/correct_original": "correct responses to originals",
    "rollout/entropy": "policy entropy (nats per token)",
    "train/grad_norm": "gradient norm",
    "answer_diversity/distinct_wrong_share": "different answers among wrong ones",
}
Figure = dict[str, Any]


@dataclass(frozen=True)
class Shown:
    """The runs of a page."""

    runs: Sequence[RunFiles]
    names: Sequence[str]
    """What each run is called."""
    group: Mapping[str, int]
    """Method → number of its colour."""

    def series(self, run: RunFiles, **content: Any) -> Figure:
        """A series of one of the runs."""
        number = self.runs.index(run)
        return {"label": self.names[number], "group": self.group[run.method], "run": number, **content}


def _figure(title: str, caption: str, panels: Iterable[Figure]) -> Iterator[Figure]:
    """The figure, unless nothing is in its panels."""
    if filled := [panel for panel in panels if panel["series"]]:
        yield {"title": title, "caption": caption, "panels": filled}


def training_figures(shown: Shown) -> Iterator[Figure]:
    """Scalars over iterations, why questions gave no gradient, and the diversity of responses."""
    panel: Figure = {"x": "iteration", "from_zero": True}
    for title, caption, columns in (
        ("Questions without gradient", "In percent of the questions of each iteration.", SERIES),
        ("Training", "As it was logged.", LEARNING),
    ):
        logged = {c: [shown.series(run, column=c) for run in shown.runs if c in run.metrics] for c in columns}
        yield from _figure(
            title, caption, [{**panel, "title": columns[c], "series": series} for c, series in logged.items()]
        )
    stacks = [[_cause(shown, run, cause) for cause in CAUSES if _occurs(run, cause)] for run in shown.runs]
    yield from _figure(
        "Why questions gave no gradient",
        "In percent of the questions of each iteration, by the first cause that holds.",
        [{**panel, "title": n, "stacked": True, "series": s} for n, s in zip(shown.names, stacks, strict=True)],
    )
    pools = {pool: list(_distances(shown, pool)) for pool in ("original", "rephrasings", "pool")}
    yield from _figure(
        "Diversity of responses",
        "Mean pairwise embedding distance (1 − cosine) of the responses to a question, by pool.",
        [{**panel, "title": pool, "points": True, "series": series} for pool, series in pools.items()],
    )


def _cause(shown: Shown, run: RunFiles, cause: str) -> Figure:
    return shown.series(run, column=f"zero_gradient/{cause}") | {"label": cause.replace("_", " "), "group": cause}


def _occurs(run: RunFiles, cause: str) -> bool:
    values = run.scalar(f"zero_gradient/{cause}")
    return values is not None and bool(values.any())


def _distances(shown: Shown, pool: str) -> Iterator[Figure]:
    """One point per question and iteration."""
    for run in shown.runs:
        rows = run.diversity[run.diversity["pool"] == pool]
        if len(rows):
            numbers = {"x": rows["iteration"].astype(int).tolist(), "y": rows["distance"].tolist()}
            yield shown.series(run, **numbers, questions=rows["question"].astype(str).tolist())


def comparison_figures(methods: Methods, shown: Shown) -> Iterator[Figure]:
    """Pass@k over k, its gains over the first trained method, over the budget, and exact pass@k."""

    def series(split: str, method: str, x: Iterable[float], **numbers: Sequence[float]) -> Figure:
        """A point opens the split, or the first one of an average."""
        content = {"evaluation": methods.parts[split][0], "x": list(x), **numbers}
        return shown.series(methods.runs[method][0], **content) | {"label": method}

    def panels(curves: Mapping[str, Mapping[str, Mapping[Any, Estimate]]], x: str, **options: Any) -> Iterator[Figure]:
        for split, of_methods in curves.items():
            drawn = [
                series(split, method, points, **{
                    key: [100 * getattr(e, part) for e in points.values()]
                    for key, part in (("y", "value"), ("low", "low"), ("high", "high"))
                })
                for method, points in of_methods.items()
            ]  # fmt: skip
            yield {"title": split, "x": x, **options, "series": drawn}

    yield from _figure("Pass@k", "In percent, with 95 % intervals.", panels(methods.curves, "k", log=2))
    first = next(iter(methods.trained), None)
    if first is not None and len(methods.runs) > 1:
        caption = f"In points, on the same questions, with 95 % intervals. Below zero, {first} is better."
        yield from _figure(f"Pass@k minus that of {first}", caption, panels(methods.gains(first), "k", log=2))
        tokens = {m: methods.tokens[m] for m in methods.trained}
        against: list[tuple[Mapping[str, float], str, str]] = [
            (tokens, "response tokens sampled in training", "budget")
        ]
        if any(len(joined) > 1 for joined in methods.data_series):
            against.append((methods.training_questions, "training questions", "questions"))
        k = methods.largest_k
        for amounts, label, what in against:
            at = {split: {m: {amounts[m]: found[m]} for m in amounts} for split, found in methods.at(k).items()}
            caption = "In percent, with 95 % intervals."
            yield from _figure(f"Pass@{k} and its {what}", caption, panels(at, label, points=True))
    exact = {m: [run for run in seeds if run.exact] for m, seeds in methods.runs.items()}
    yield from _figure(
        "Exact pass@k",
        "In percent, from the probabilities of all correct responses; means over questions and seeds.",
        [
            {"title": split, "x": "k", "log": 10, "from_zero": True, "series": [
                series(split, m, KS, y=_exact_curve(seeds, split)) for m, seeds in exact.items() if seeds
            ]}
            for split in methods.splits
        ],
    )  # fmt: skip


def _exact_curve(runs: Sequence[RunFiles], split: str) -> list[float]:
    curves = [exact_pass_at_k(success_of(run, split), KS).mean(0) for run in runs]
    return [float(value) for value in 100 * torch.stack(curves).mean(0)]
