"""Every method beside every other: `python -m studies.second.benchmark` writes docs/benchmark.md from the digests.

All have the same settings (`recipe=common`), tasks and seeds. What counts is the gain in pass@k over the starter policy
that a run began with; over tasks and seeds its interquartile mean is reported, with the probability that a run is
better than one of GRPO with as many responses to a question, as Agarwal et al. propose (arXiv 2108.13264).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

from tagrpo.analysis.sections import table
from tagrpo.analysis.statistics import Estimate
from tagrpo.files import write_json, write_text

from .digest import FOLDER, KS, read
from .figures import save
from .tables import Setting, experiment_of, settings_of

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "benchmark.md"
PICTURES = DOCS / "benchmark"
GAINS_FILE = FOLDER / "gains.json"
"""What `gains_of_experiments` returns, for docs/methods.md."""
SETTINGS = ("arithmetic/mixed", "shortest_path/easy", "countdown/easy")
GRIDS = ("factors", "benchmark")
HIDDEN = ("ta_grpo_random", "grpo_long", "grpo_data", "grpo_matched_few", "gate")
"""Methods of the study that are controls or have other settings; `overtraining_gate` is in the benchmark."""
STARTER = "base"
SHOWN = (1, 8, 32)
SPLIT = "test_id"
RESAMPLES = 4000

INTRODUCTION = """\
# Every method beside every other

{leads}

All methods of the README with the same settings (`recipe=common`), {seeds} seeds each, on three embedded tasks:
{settings}. Gains are in points of pass@k over the starter policy that a run began with, on new questions like those
that were trained: interquartile means over tasks and seeds, with 95 % intervals from a bootstrap that resamples the
seeds of each task. **Better** is the probability that a run has a higher pass@32 than one of the GRPO that draws as
many responses to a question (`grpo` or `grpo_matched`), where 50 % is no difference. Intervals are not corrected for
the number of methods, {methods}, so that some lie on one side by luck, and a bootstrap of {seeds} seeds is too narrow:
what stands out here is worth a run with more. No method was tuned; learning rate, batch and length were chosen for
`grpo_matched`. `studies/second/README.md` says how to run it again.

![Gains of all methods](benchmark/gains.png)

![Course of training of all methods](benchmark/courses.png)
"""


PARTIAL = """
## On one task alone

Gains on `{settings}` alone, which cannot be compared with those above; **better** can. The policies of this benchmark
have never seen a template. The [study](study.md) trains some that have, three times as long, and with ten seeds.
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method on the page."""

    method: str
    settings: Sequence[str]
    """Where it has run."""
    against: str
    gains: Mapping[int, Estimate]
    """k → gain in pass@k."""
    better: Estimate
    """Probability of a higher pass@32 than `against`."""
    responses: float
    updates: float
    seconds: float
    command: str


def entries_of(digests: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
    """The runs to show: of the page's settings, of seeds and methods that have been run in all of them or in one."""
    entries = [e for grid in GRIDS for e in digests[grid] if f"{e['task']}/{e['regime']}" in SETTINGS]
    seeds = {e["seed"] for e in digests["benchmark"]}
    return [
        e
        for e in entries
        if e["seed"] in seeds and e["method"] not in HIDDEN and not e["method"].startswith("questions")
    ]


def gains(settings: Mapping[str, Setting], method: str, k: int) -> list[np.ndarray]:
    """Per task that the method has run on, [seeds] pass@k − that of the starter of the same seed."""
    found = []
    for setting in settings.values():
        if method in setting.methods:
            ours, start = (setting.pass_at_k(name, k, SPLIT).mean(axis=1) for name in (method, STARTER))
            found.append((ours - start).dropna().to_numpy())
    return found


def interquartile_mean(tasks: Sequence[np.ndarray]) -> float:
    """Mean of the middle half of all runs.

    >>> interquartile_mean([np.array([0.0, 1.0]), np.array([2.0, 30.0])])
    1.5
    """
    return float(stats.trim_mean(np.concatenate(tasks), 0.25))


def probability(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
    """Mean over tasks of P(a run of ours > one of theirs), ties half.

    >>> probability([np.array([1.0, 3.0])], [np.array([2.0, 3.0])])
    0.375
    """
    signs = [np.sign(one[:, None] - other[None, :]).mean() for one, other in zip(ours, theirs, strict=True)]
    return float(0.5 + np.mean(signs) / 2)


def bootstrapped(of: Callable[..., float], *samples: Sequence[np.ndarray]) -> Estimate:
    """A statistic with its 95 % percentile interval over seeds, which are resampled task by task."""
    rng = np.random.default_rng(0)
    drawn = [of(*([rng.choice(task, len(task)) for task in tasks] for tasks in samples)) for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(of(*samples), float(low), float(high))


def rows_of(entries: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The methods, those that ran in all settings first, and then the largest gain in pass@32."""
    settings = settings_of(entries)
    rows = []
    for method in dict.fromkeys(e["method"] for e in entries if e["method"] != STARTER):
        runs = [run for setting in settings.values() if method in setting.methods for run in setting.of(method)]
        mine = {name: setting for name, setting in settings.items() if method in setting.methods}
        against = min(("grpo", "grpo_matched"), key=lambda name: abs(_responses(mine, name) - _responses(mine, method)))
        of_k = {k: bootstrapped(interquartile_mean, gains(mine, method, k)) for k in SHOWN}
        better = bootstrapped(probability, gains(mine, method, 32), gains(mine, against, 32))
        row = Row(
            method=method,
            settings=list(mine),
            against=against,
            gains=of_k,
            better=better,
            responses=float(np.mean([run["ledger"]["rollouts"] for run in runs])),
            updates=float(np.mean([run["ledger"]["updates"] for run in runs])),
            seconds=float(np.mean([run["seconds"] for run in runs])),
            command=command(runs[0]["command"]),
        )
        rows.append(row)
    return sorted(rows, key=lambda row: (-len(row.settings), -row.gains[32].value))


def everywhere(rows: Sequence[Row]) -> list[Row]:
    """Those that ran in all settings, whose gains can be compared."""
    return [row for row in rows if len(row.settings) == len(SETTINGS)]


def _responses(settings: Mapping[str, Setting], method: str) -> float:
    return float(np.mean([run["ledger"]["rollouts"] for s in settings.values() for run in s.of(method)]))


def command(full: str) -> str:
    """What defines the method in the command of a run: the experiment, and overrides after it."""
    parts = shlex.split(full)
    start = next(i for i, part in enumerate(parts) if part.startswith("experiment="))
    shown = [part for part in parts[start:] if not part.startswith(("callbacks", "resume=", "hydra.", "export="))]
    return shlex.join(["tagrpo-train", "recipe=common", *shown])


def gains_of_experiments(rows: Sequence[Row]) -> dict[str, str]:
    """Experiment → its gain in pass@32 with its interval, of the method that changes least in it."""
    least_changed = sorted(everywhere(rows), key=lambda row: len(shlex.split(row.command)), reverse=True)
    return {experiment_of(row.command): row.gains[32].signed for row in least_changed}


def page(entries: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> str:
    """The page in Markdown."""
    ranked = everywhere(rows)
    partial = [row for row in rows if row not in ranked]
    seeds = len({e["seed"] for e in entries})
    settings = ", ".join(f"`{name}`" for name in SETTINGS)
    introduction = INTRODUCTION.format(leads=_leads(ranked), seeds=seeds, settings=settings, methods=len(ranked))
    some = [PARTIAL.format(settings=partial[0].settings[0]), *_table(partial)] if partial else []
    return "\n".join([introduction, *_table(ranked), *some, *_same(entries)]) + "\n"


def _leads(rows: Sequence[Row]) -> str:
    above, below = (
        ", ".join(f"`{row.method}`" for row in rows if side(row.better)) or "none"
        for side in (lambda better: better.low > 0.5, lambda better: better.high < 0.5)
    )
    return (
        "**What is worth trying for pass@32:** with its whole interval better than GRPO with as many responses is "
        f"{above}. Worse is {below}. Of all others it cannot be told."
    )


def _same(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for setting, runs in settings_of(entries).items():
        groups: dict[tuple[Any, ...], list[str]] = {}
        for method in runs.methods:
            groups.setdefault(tuple((run["seed"], run["weights"]) for run in runs.of(method)), []).append(method)
        for names in groups.values():
            if len(names) > 1:
                listed = ", ".join(f"`{name}`" for name in names)
                yield f"\nOn `{setting}` the weights of {listed} are equal to the last bit."


def _table(rows: Sequence[Row]) -> Iterator[str]:
    header = ["method", *(f"pass@{k}" for k in SHOWN), "better", "than", "responses", "updates", "seconds", "command"]
    yield from table(
        header,
        [
            [
                f"`{row.method}`",
                *(row.gains[k].signed for k in SHOWN),
                str(row.better),
                f"`{row.against}`",
                f"{row.responses:,.0f}",
                f"{row.updates:,.0f}",
                f"{row.seconds:,.0f}",
                f"`{row.command}`",
            ]
            for row in rows
        ],
    )


def draw_gains(rows: Sequence[Row], path: Path) -> None:
    """Interquartile means with their intervals, one line per method, one panel per k."""
    figure, axes = plt.subplots(1, len(SHOWN), figsize=(11, 0.19 * len(rows) + 1), sharey=True, layout="constrained")
    places = np.arange(len(rows))[::-1]
    for axis, k in zip(axes, SHOWN, strict=True):
        values, lows, highs = (
            100 * np.array([getattr(row.gains[k], name) for row in rows]) for name in ("value", "low", "high")
        )
        axis.axvline(0, color="0.6", linewidth=0.8)
        axis.hlines(places, lows, highs, color="tab:blue", linewidth=1.2)
        axis.plot(values, places, "o", color="tab:blue", markersize=3)
        axis.set_title(f"gain in pass@{k}, points", fontsize=9)
        axis.tick_params(labelsize=7)
        axis.margins(y=0.01)
    axes[0].set_yticks(places, [row.method for row in rows])
    save(figure, path)


def draw_courses(entries: Sequence[Mapping[str, Any]], rows: Sequence[Row], path: Path) -> None:
    """Pass@1 and pass@32 of every method over training, each relative to its start; means over tasks and seeds."""
    columns = 8
    lines = -(-len(rows) // columns)
    size = (11, 1.15 * lines)
    figure, axes = plt.subplots(lines, columns, figsize=size, sharex=True, sharey=True, layout="constrained")
    for axis in axes.flat[len(rows) :]:
        axis.set_axis_off()
    for axis, row in zip(axes.flat, rows, strict=False):
        runs = [e for e in entries if e["method"] == row.method]
        for k, color in ((1, "tab:orange"), (32, "tab:blue")):
            shares = np.linspace(0, 1, 9)
            curves = [np.interp(shares, *_course(run, _start_of(entries, run), k)) for run in runs]
            axis.plot(shares, 100 * np.mean(curves, axis=0), color=color, linewidth=1)
        axis.axhline(0, color="0.7", linewidth=0.6)
        axis.set_title(row.method, fontsize=6.5, pad=2)
        axis.tick_params(labelsize=6)
    figure.suptitle("points of pass@1 (orange) and pass@32 (blue) over the starter, over training", fontsize=9)
    save(figure, path)


def _start_of(entries: Sequence[Mapping[str, Any]], run: Mapping[str, Any]) -> Mapping[str, Any]:
    keys = ("task", "regime", "seed")
    return next(e for e in entries if e["method"] == STARTER and all(e[key] == run[key] for key in keys))


def _course(run: Mapping[str, Any], start: Mapping[str, Any], k: int) -> tuple[list[float], list[float]]:
    """Share of training and gain over the start, at each evaluation."""
    place, last = KS.index(k), run["course"][-1]["iteration"]
    first = start["course"][-1]["pass"][SPLIT][place]
    points = [(point["iteration"] / last, point["pass"][SPLIT][place] - first) for point in run["course"]]
    shares, values = zip((0.0, 0.0), *points, strict=True)
    return list(shares), list(values)


def main() -> None:
    """Write page and pictures."""
    entries = entries_of({name: read(FOLDER / f"{name}.jsonl.gz") for name in GRIDS})
    rows = rows_of(entries)
    draw_gains(everywhere(rows), PICTURES / "gains.png")
    draw_courses(entries, everywhere(rows), PICTURES / "courses.png")
    write_text(PAGE, page(entries, rows))
    write_json(GAINS_FILE, gains_of_experiments(rows))
    print(PAGE)


if __name__ == "__main__":
    main()
