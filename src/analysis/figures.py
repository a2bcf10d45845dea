"""Figures of runs as data, from which pages, PNGs and notebooks are drawn.

- A figure has a `title`, a `caption`, `y` (the label of the vertical axis) and `panels`.
- A panel has a `title`, `x` (the label of the horizontal axis) and `series`. It may have `log`, for a
  logarithmic horizontal axis, and `from_zero`, for a vertical axis that begins at zero.
- A series has a `label` and a `group`, which determines its colour: the number of a method, or a cause of
  missing gradients. A series over training has `run` (the number of a run) and `column` (a column of this
  run's log); the seeds of a method share a label. Any other series has `x` and `y`, and may have the ends
  `low` and `high` of intervals.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import torch

from ..metrics.functional import CAUSES, exact_pass_at_k
from .comparison import ZERO_GRADIENT, Curves, Methods, Runs
from .diagnosis import COLUMNS, stage_name
from .runs import RunFiles
from .statistics import Estimate

Figure = dict[str, Any]
ZERO_GRADIENTS = {
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
POOLS = {"original": "original (G)", "rephrasings": "rephrasings (N·G)"}
EXACT_KS = [round(10 ** (step / 4)) for step in range(25)]  # 1 … 10^6, evenly on a logarithmic axis


class Figures:
    """Figures of finished or unfinished runs, and figures of their comparison if `compared` is given."""

    def __init__(self, methods: Runs, compared: Methods | None = None) -> None:
        self.methods, self.compared = methods, compared
        self.runs = [run for seeds in methods.values() for run in seeds]
        self.first = {number: run for number, run in enumerate(self.runs) if run is methods[run.method][0]}
        self.group = {method: number for number, method in enumerate(methods)}

    def name(self, run: RunFiles) -> str:
        """Return the name of a run: its method, and its seed if the method has several runs."""
        return run.method if len(self.methods[run.method]) == 1 else str(run)

    def all(self) -> dict[str, Figure]:
        """Return the figures that have panels, by name."""
        found = {
            **(self._compared(self.compared) if self.compared is not None else {}),
            "exact": figure("Exact pass@k", "From the probabilities of all correct responses.", "%", self._exact()),
            "learning": figure(
                "Training", "Running means over an eighth of training; thick: mean over seeds.", "",
                self._over(LEARNING),
            ),
            "zero_gradient": figure(
                "Questions without gradient", "In percent of the questions of each iteration; running means.",
                "% of questions", self._over(ZERO_GRADIENTS),
            ),
            "causes": figure(
                "Why questions gave no gradient",
                "In percent, by the first cause that holds; running means, of the first seed of each method.",
                "% of questions, no gradient", map(self._causes, self.first),
            ),
            "evaluations": figure(
                "Evaluations during training", "In percent, with 95 % intervals.", "pass@k (%)", self._evaluations()
            ),
            "equal_rewards": figure(
                "Training questions with equal rewards, asked again",
                "TA-GRPO, Fig. 3, with 95 % intervals, of the first seed of each method.",
                "% of questions", map(equal_rewards, self.first.values()),
            ),
            "diversity": figure(
                "How different the responses to a question are (TA-GRPO, Fig. 4)",
                "Share of questions up to a mean pairwise distance of embeddings, of the first seed of each method.",
                "% of questions up to it", (panel for run in self.first.values() for panel in distances(run)),
            ),
        }  # fmt: skip
        return {name: drawn for name, drawn in found.items() if drawn["panels"]}

    def _compared(self, methods: Methods) -> dict[str, Figure]:
        baseline, k, series = methods.baseline, methods.largest_k, methods.data_series
        tokens = {str(method): float(spent) for method, spent in methods.budgets["tokens"].items() if spent}
        several = any(len(joined) > 1 for joined in series)
        return {
            "gains": figure(
                f"Pass@k minus that of {baseline}",
                f"In points above {baseline}, on the same questions, with 95 % intervals for each k on its own.",
                "points", self._over_k(methods.gains(baseline)),
            ),
            "pass_at_k": figure(
                "Pass@k", "In percent, with 95 % intervals over questions and seeds.", "pass@k (%)",
                self._over_k(methods.curves),
            ),
            "budget": figure(
                f"Pass@{k} against the response tokens that were sampled in training",
                "In percent, with 95 % intervals.",
                f"pass@{k} (%)", self._against(methods, tokens, "response tokens", [[m] for m in tokens]),
            ),
            "data": figure(
                f"Pass@{k} against the questions that were trained on",
                "In percent, with 95 % intervals. Lines join methods that differ in nothing else (TA-GRPO, Fig. 7).",
                f"pass@{k} (%)",
                self._against(methods, methods.training_questions, "questions", series if several else []),
            ),
        }  # fmt: skip

    def _over_k(self, curves: Curves) -> Iterator[Figure]:
        """Yield a panel for every split or average, with a series over k for every method."""
        for part, found in curves.items():
            series = [_estimates(m, self.group[m], points, points.values()) for m, points in found.items()]
            yield {"title": part, "x": "k", "log": True, "series": series}

    def _against(
        self, methods: Methods, amounts: Mapping[str, float], label: str, series: Sequence[Sequence[str]]
    ) -> Iterator[Figure]:
        """Yield a panel for every split or average: pass@k at the largest k, against `amounts`.

        A line joins the methods in each list of `series`. Every other method is a horizontal line.
        """
        for part, of_method in methods.at(methods.largest_k).items() if series else ():
            drawn = [
                _estimates(
                    names[0], self.group[names[0]], [amounts[m] for m in names], [of_method[m] for m in names]
                )
                for names in series
            ]
            across = [0, max(amounts[m] for joined in series for m in joined)]
            for method in [m for m in of_method if not any(m in joined for joined in series)]:
                level = [100 * of_method[method].value] * 2
                name = f"{method} (not trained)" if method in methods.untrained else method
                drawn.append({"label": name, "group": self.group[method], "x": across, "y": level})
            yield {"title": part, "x": label, "series": drawn}

    def _over(self, columns: Mapping[str, str]) -> Iterator[Figure]:
        """Yield a panel for every scalar, with a series for every run that logged it."""
        for column, title in columns.items():
            series = [
                {"label": run.method, "group": self.group[run.method], "run": number, "column": column}
                for number, run in enumerate(self.runs)
                if column in run.metrics
            ]
            yield {"title": title, "x": "iteration", "from_zero": True, "series": series}

    def _causes(self, number: int) -> Figure:
        run = self.runs[number]
        series = [
            {"label": cause.replace("_", " "), "group": cause, "run": number, "column": column}
            for cause in CAUSES
            if (logged := run.scalar(column := f"zero_gradient/{cause}")) is not None and logged.any()
        ]
        return {"title": run.method, "x": "iteration", "from_zero": True, "series": series}

    def _evaluations(self) -> Iterator[Figure]:
        """Yield a panel for every split: pass@k at the smallest k, over training.

        A run has a series if it was evaluated more than once, from exact values if they are known.
        """
        every = [(run, run.exact or run.evaluations) for run in self.runs]
        for split in dict.fromkeys(
            name for _, found in every for evaluation in found for name in evaluation["splits"]
        ):
            series, k = [], ""
            for run, found in every:
                points = {}
                for evaluation in found:
                    if curve := evaluation["splits"].get(split, {}).get("pass_at_k"):
                        k = min(curve, key=int)
                        points[int(evaluation.get("iteration", 0))] = Estimate(**curve[k])
                if len(points) > 1:
                    series.append(_estimates(self.name(run), self.group[run.method], points, points.values()))
            yield {"title": f"{split} pass@{k}", "x": "iterations trained", "series": series}

    def _exact(self) -> Iterator[Figure]:
        """Yield a panel for every split: mean pass@k over seeds of each method's last exact evaluation."""
        last = {
            m: [run.exact[-1]["splits"] for run in seeds if run.exact] for m, seeds in self.methods.items()
        }
        for split in dict.fromkeys(name for seeds in last.values() for splits in seeds for name in splits):
            series = []
            for method, seeds in last.items():
                rows = [splits[split]["questions"] for splits in seeds if split in splits]
                success = [
                    torch.tensor([row["success"] for row in of_run], dtype=torch.float64) for of_run in rows
                ]
                if success:
                    curve = 100 * torch.stack([exact_pass_at_k(p, EXACT_KS).mean(0) for p in success]).mean(0)
                    series.append(
                        {"label": method, "group": self.group[method], "x": EXACT_KS, "y": curve.tolist()}
                    )
            yield {"title": split, "x": "k", "log": True, "from_zero": True, "series": series}


def figure(title: str, caption: str, y: str, panels: Iterable[Figure]) -> Figure:
    """Return a figure of those panels that have series."""
    return {
        "title": title,
        "caption": caption,
        "y": y,
        "panels": [panel for panel in panels if panel["series"]],
    }


def _estimates(label: str, group: int, x: Iterable[float], estimates: Iterable[Estimate]) -> Figure:
    """Return a series of estimates in percent."""
    columns = zip(*((e.value, e.low, e.high) for e in estimates), strict=True)
    y, low, high = ([100 * number for number in column] for column in columns)
    return {"label": label, "group": group, "x": list(x), "y": y, "low": low, "high": high}


def equal_rewards(run: RunFiles) -> Figure:
    """Return a panel with the percentage of a run's questions whose responses get equal rewards.

    The panel follows TA-GRPO, Fig. 3: over checkpoints, with one series for each set of responses in
    `COLUMNS`. It has no series if the run was not diagnosed.
    """
    series, checkpoints = [], (run.diagnosis or {"checkpoints": ()})["checkpoints"]
    for group, name in enumerate(name for name in COLUMNS if name.startswith("uniform_reward/")):
        found = [
            (100 * point["share"], point["metrics"][name])
            for point in checkpoints
            if name in point["metrics"]
        ]
        ends = {
            line: [x[part] for _, x in found]
            for line, part in (("y", "value"), ("low", "low"), ("high", "high"))
        }
        label = COLUMNS[name].removeprefix("equal rewards, ")
        series += (
            [{"label": label, "group": group, "x": [share for share, _ in found], **ends}] if found else []
        )
    return {"title": run.method, "x": "% of training", "from_zero": True, "series": series}


def distances(run: RunFiles) -> Iterator[Figure]:
    """Yield a panel per pool: the share of questions with at most a given distance between responses.

    A panel has a series for each checkpoint of the run's diagnosis or, without a diagnosis, for each half of
    training.
    """
    if run.diagnosis is not None:
        stages = {
            stage_name(point): pd.DataFrame(point["questions"]) for point in run.diagnosis["checkpoints"]
        }
    else:
        rows = run.diversity.assign(pool="embedding_distance/" + run.diversity["pool"])
        rows = rows.pivot(index=["iteration", "question"], columns="pool", values="distance").reset_index()
        late = rows["iteration"] > rows["iteration"].max() / 2
        stages = {"first half": rows[~late], "second half": rows[late]}
    for pool, title in POOLS.items():
        series = []
        for number, (stage, rows) in enumerate(stages.items()):
            x = sorted(rows.get(f"embedding_distance/{pool}", pd.Series(dtype=float)).dropna())
            shares = [100 * (rank + 1) / len(x) for rank in range(len(x))]
            series += [{"label": stage, "group": number, "x": x, "y": shares}] if x else []
        yield {
            "title": f"{run.method}, {title}",
            "x": "distance (1 − cosine)",
            "from_zero": True,
            "series": series,
        }
