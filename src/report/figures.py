"""The figures of a page as data: panels of series, each point of which can be opened.

A series of training names a run and a scalar, whose numbers stand in the run's block `iterations`. Others have their
numbers with them: `x`, `y`, and intervals `low`, `high`; `evaluation` (a split) or `questions` say what a point opens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..analysis.comparison import ZERO_GRADIENT, Curves, Methods
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
Group = Mapping[str, int]
"""Method → number of its colour."""


def training_figures(runs: Sequence[RunFiles], names: Sequence[str], group: Group) -> Iterator[Figure]:
    """Scalars over iterations, and why questions gave no gradient. `names`: what the runs are called."""
    for title, caption, columns in (
        ("Questions without gradient", "In percent of the questions of each iteration.", SERIES),
        ("Training", "As it was logged.", LEARNING),
    ):
        panels = [
            {
                "title": label,
                "x": "iteration",
                "from_zero": True,
                "series": [
                    {"label": names[i], "group": group[run.method], "run": i, "column": column}
                    for i, run in enumerate(runs)
                    if column in run.metrics
                ],
            }
            for column, label in columns.items()
        ]
        if panels := [panel for panel in panels if panel["series"]]:
            yield {"title": title, "caption": caption, "panels": panels}
    panels = []
    for i, run in enumerate(runs):
        found = [cause for cause in CAUSES if f"zero_gradient/{cause}" in run.metrics]
        stack = [
            {"label": cause.replace("_", " "), "group": cause, "run": i, "column": f"zero_gradient/{cause}"}
            for cause in found
            if run.metrics[f"zero_gradient/{cause}"].any()
        ]
        if stack:
            panels.append({"title": names[i], "x": "iteration", "stacked": True, "from_zero": True, "series": stack})
    if panels:
        caption = "In percent of the questions of each iteration, by the first cause that holds."
        yield {"title": "Why questions gave no gradient", "caption": caption, "panels": panels}


def diversity_figure(runs: Sequence[RunFiles], names: Sequence[str], group: Group) -> Iterator[Figure]:
    """Mean pairwise embedding distances, one point per question and iteration."""
    panels = []
    for pool in ("original", "rephrasings", "pool"):
        series = []
        for i, run in enumerate(runs):
            rows = run.diversity[run.diversity["pool"] == pool] if len(run.diversity) else run.diversity
            if len(rows):
                numbers = {"x": rows["iteration"].astype(int).tolist(), "y": rows["distance"].tolist()}
                questions = rows["question"].astype(str).tolist()
                series.append(
                    {"label": names[i], "group": group[run.method], "run": i, **numbers, "questions": questions}
                )
        if series:
            panels.append({"title": pool, "x": "iteration", "points": True, "from_zero": True, "series": series})
    if panels:
        caption = "Mean pairwise embedding distance (1 − cosine) of the responses to a question, by pool."
        yield {"title": "Diversity of responses", "caption": caption, "panels": panels}


def comparison_figures(methods: Methods, number: Mapping[RunFiles, int], group: Group) -> Iterator[Figure]:
    """Pass@k over k, its gains over the first trained method, over the budget, and exact pass@k."""
    yield _over_k(methods, methods.curves, number, group, "Pass@k", "In percent, with 95 % intervals.")
    first = next(iter(methods.trained), None)
    if first is not None and len(methods.runs) > 1:
        caption = f"In points, on the same questions, with 95 % intervals. Below zero, {first} is better."
        yield _over_k(methods, methods.gains(first), number, group, f"Pass@k minus that of {first}", caption)
        tokens = {method: methods.tokens[method] for method in methods.trained}
        yield _against(methods, tokens, "response tokens sampled in training", number, group, "its budget")
        if any(len(joined) > 1 for joined in methods.data_series):
            yield _against(methods, methods.training_questions, "training questions", number, group, "its questions")
    if any(run.exact for seeds in methods.runs.values() for run in seeds):
        yield _exact(methods, number, group)


def _over_k(
    methods: Methods, curves: Curves, number: Mapping[RunFiles, int], group: Group, title: str, caption: str
) -> Figure:
    panels = [
        {
            "title": split,
            "x": "k",
            "log": 2,
            "series": [
                {
                    **_evaluated(methods, split, number, m, group),
                    "x": list(points),
                    **_points(points.values()),
                }
                for m, points in by_method.items()
            ],
        }
        for split, by_method in curves.items()
    ]
    return {"title": title, "caption": caption, "panels": panels}


def _against(
    methods: Methods, amounts: Mapping[str, float], label: str, number: Mapping[RunFiles, int], group: Group, what: str
) -> Figure:
    k = methods.largest_k
    panels = [
        {
            "title": split,
            "x": label,
            "points": True,
            "series": [
                {**_evaluated(methods, split, number, m, group), "x": [amount], **_points([by_method[m]])}
                for m, amount in amounts.items()
            ],
        }
        for split, by_method in methods.at(k).items()
    ]
    return {"title": f"Pass@{k} and {what}", "caption": "In percent, with 95 % intervals.", "panels": panels}


def _exact(methods: Methods, number: Mapping[RunFiles, int], group: Group) -> Figure:
    panels = []
    for split in methods.splits:
        series = []
        for m, seeds in methods.runs.items():
            if having := [run for run in seeds if run.exact]:
                curve = torch.stack([exact_pass_at_k(success_of(run, split), KS).mean(0) for run in having]).mean(0)
                numbers = {"x": KS, "y": (100 * curve).tolist()}
                series.append({**_evaluated(methods, split, number, m, group), "run": number[having[0]], **numbers})
        panels.append({"title": split, "x": "k", "log": 10, "from_zero": True, "series": series})
    caption = "In percent, from the probabilities of all correct responses; means over questions and seeds."
    return {"title": "Exact pass@k", "caption": caption, "panels": panels}


def _evaluated(methods: Methods, name: str, number: Mapping[RunFiles, int], method: str, group: Group) -> Figure:
    """Of a split or an average; a point opens the split, or the first of the average."""
    run = methods.runs[method][0]
    return {"label": method, "group": group[method], "run": number[run], "evaluation": methods.parts[name][0]}


def _points(estimates: Iterable[Estimate]) -> dict[str, list[float]]:
    found = list(estimates)
    return {
        "y": [100 * e.value for e in found],
        "low": [100 * e.low for e in found],
        "high": [100 * e.high for e in found],
    }
