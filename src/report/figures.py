"""The figures of a page as data: panels of series.

A series of training names a run and a scalar, whose numbers stand in the run's block `iterations`, and its points open
these iterations. Others have their numbers with them: `x`, `y`, and intervals `low`, `high`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..analysis.answer import baseline_of, headline
from ..analysis.comparison import Curves, Methods, Runs
from ..analysis.pictures import LEARNING, SERIES
from ..analysis.runs import RunFiles
from ..analysis.statistics import Estimate
from ..metrics.functional import CAUSES

Figure = dict[str, Any]


@dataclass(frozen=True)
class Shown:
    """The runs of a page."""

    methods: Runs

    @property
    def runs(self) -> list[RunFiles]:
        """All of them, in the order of their methods."""
        return [run for seeds in self.methods.values() for run in seeds]

    def name(self, run: RunFiles) -> str:
        """What a run is called."""
        return run.method if len(self.methods[run.method]) == 1 else f"{run.method} seed {run.seed}"

    def group(self, method: str) -> int:
        """Number of a method's colour."""
        return list(self.methods).index(method)

    def logged(self, column: str) -> list[Figure]:
        """The series of a scalar, of all runs that logged it."""
        return [
            {"label": self.name(run), "group": self.group(run.method), "run": number, "column": column}
            for number, run in enumerate(self.runs)
            if column in run.metrics
        ]

    def numbers(self, label: str, method: str, points: Mapping[Any, Estimate]) -> Figure:
        """A series of estimates in percent."""
        values = {
            key: [100 * getattr(e, part) for e in points.values()]
            for key, part in (("y", "value"), ("low", "low"), ("high", "high"))
        }
        return {"label": label, "group": self.group(method), "x": list(points), **values}

    def over_k(self, curves: Curves) -> Iterator[Figure]:
        """A panel for every split or average, with a series over k for every method."""
        for part, found in curves.items():
            yield {"title": part, "x": "k", "log": True, "series": [self.numbers(m, m, p) for m, p in found.items()]}


def figure(title: str, caption: str, panels: Iterable[Figure]) -> list[Figure]:
    """The figure, unless nothing is in its panels."""
    filled = [panel for panel in panels if panel["series"]]
    return [{"title": title, "caption": caption, "panels": filled}] if filled else []


def training_figures(shown: Shown) -> Iterator[Figure]:
    """Scalars over iterations, causes of missing gradients, and evaluations during training."""
    panel: Figure = {"x": "iteration", "from_zero": True}
    for title, caption, columns in (
        ("Training", "Running means over an eighth of training.", LEARNING),
        ("Questions without gradient", "In percent of the questions of each iteration; running means.", SERIES),
    ):
        panels = [{**panel, "title": name, "series": shown.logged(column)} for column, name in columns.items()]
        yield from figure(title, caption, panels)
    causes = [{**panel, "title": shown.name(run), "series": []} for run in shown.runs]
    for cause in CAUSES:
        for one in shown.logged(column := f"zero_gradient/{cause}"):
            if shown.runs[one["run"]].metrics[column].any():
                causes[one["run"]]["series"].append(one | {"label": cause.replace("_", " "), "group": cause})
    caption = "In percent, by the first cause that holds; running means."
    yield from figure("Why questions gave no gradient", caption, causes)
    yield from figure("Evaluations during training", "In percent, with 95 % intervals.", _evaluations(shown))


def _evaluations(shown: Shown) -> Iterator[Figure]:
    """Pass@k at the smallest k of each split that a run was evaluated on more than once."""
    for split in dict.fromkeys(name for run in shown.runs for e in run.evaluations for name in e["splits"]):
        series, k = [], ""
        for run in shown.runs:
            points = {}
            for evaluation in run.evaluations:
                if curve := evaluation["splits"].get(split, {}).get("pass_at_k"):
                    k = min(curve, key=int)
                    points[int(evaluation.get("iteration", 0))] = Estimate(**curve[k])
            series += [shown.numbers(shown.name(run), run.method, points)] if len(points) > 1 else []
        yield {"title": f"{split} pass@{k}", "x": "iterations trained", "series": series}


def comparison_figures(methods: Methods, shown: Shown) -> list[Figure]:
    """Gains in pass@k over the baseline where there are any, and pass@k."""
    baseline = baseline_of(methods)
    caption = f"In points above {baseline}, on the same questions, with 95 % intervals for each k on its own."
    return [
        *figure(f"Pass@k minus that of {baseline}", caption, shown.over_k(methods.gains(baseline))),
        *figure("Pass@k", "In percent, with 95 % intervals.", shown.over_k(methods.curves)),
    ]


def picture(methods: Methods, figures: Sequence[Figure]) -> Figure:
    """The first figure with nothing but what the answer speaks of."""
    return {**figures[0], "panels": [p for p in figures[0]["panels"] if p["title"] == headline(methods)[0]]}
