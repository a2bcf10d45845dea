"""Every method beside every other: `python -m studies.benchmark.page` writes the tables of README.md from the digests.

All have the same settings (`recipe=common`), tasks and, where they need one, the same k. What counts is the gain in
pass@k over the untrained policy that a run began with, in every task, with the intervals of the third study. A mean
over tasks is printed only if they agree on its sign (`studies.tasks`).
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from tagrpo.analysis.sections import table
from tagrpo.analysis.statistics import LEVEL, Estimate
from tagrpo.files import write_json, write_section

from ..tasks import OverTasks, over_tasks, points
from ..third.verdicts import by_task, estimate_of, moments_of
from .digest import BASE, FOLDER, SETTINGS, Runs, gains, paired, read, setting_of, settings_of, table_of

PAGE = Path(__file__).resolve().with_name("README.md")
GAINS_FILE = FOLDER / "gains.json"
"""The result of `gains_of_experiments`, for docs/methods.md."""
REFERENCES = ("grpo", "grpo_matched")
SHOWN = (1, 32)
REGIMES = dict(sorted(name.split("/") for name in SETTINGS))
"""Task → its regime."""
TASKS = tuple(REGIMES)


@dataclass(frozen=True, kw_only=True)
class Method:
    """Runs of a method, and what they gained."""

    runs: Runs
    gains: Mapping[int, Mapping[str, pd.DataFrame]]
    """k → setting → [seeds, questions] pass@k over that of the untrained policy."""

    def mean(self, name: str, settings: Sequence[str]) -> float:
        """Of a number of the ledger, over settings."""
        values = (
            [run["ledger"][name] for run in self.runs if setting_of(run) == setting] for setting in settings
        )
        return float(np.mean([np.mean(of_setting) for of_setting in values]))


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method on the page."""

    name: str
    method: Method
    settings: Sequence[str]
    """Where it has run."""
    gains: Mapping[int, OverTasks]
    """k → gain in pass@k."""
    difference: OverTasks
    """Pass@32 − that of `reference`."""
    corrected: Mapping[str, Estimate]
    """Task → gain in pass@32, with an interval that is corrected for the number of methods."""
    corrected_difference: OverTasks
    """The difference, whose mean has an interval that is corrected for the number of methods."""
    reference: str
    drawn: float
    """Responses drawn for training, those of dropped groups too, in units of those of `reference`."""
    command: str


def kept() -> list[Runs]:
    """The digests beside the code: `benchmark.jsonl.gz`, then others with untrained policies of their own."""
    return [
        read(path)
        for path in sorted(FOLDER.glob("*.jsonl.gz"), key=lambda path: path.stem != "benchmark.jsonl")
    ]


def methods_of(*digests: Runs) -> dict[str, Method]:
    """The methods of digests, each compared with the untrained policies of its own digest."""
    found = {}
    for runs in digests:
        settings = settings_of(runs)
        for name in dict.fromkeys(run["method"] for run in runs if run["method"] != BASE):
            own = [run for run in runs if run["method"] == name]
            found[name] = Method(runs=own, gains={k: gains(settings, name, k) for k in SHOWN})
    return found


def rows_of(methods: Mapping[str, Method]) -> list[Row]:
    """The methods, those that ran in all settings first, then by the gain in pass@32 where they gain least."""
    level = LEVEL / 2 / len(methods)
    rows = []
    for name, method in methods.items():
        settings = list(method.gains[32])
        drawn = {
            other: method.mean("rollouts", settings) / methods[other].mean("rollouts", settings)
            for other in REFERENCES
        }
        reference = min(drawn, key=lambda other: abs(np.log(drawn[other])))
        theirs = methods[reference].gains[32]
        difference = {setting: paired(table, theirs[setting]) for setting, table in method.gains[32].items()}
        tasks = by_task(method.gains[32])
        rows.append(
            Row(
                name=name,
                method=method,
                settings=settings,
                gains={k: over_tasks(tables) for k, tables in method.gains.items()},
                difference=over_tasks(difference),
                corrected={task: estimate_of(moments_of(tables), level) for task, tables in tasks.items()},
                corrected_difference=over_tasks(difference, level),
                reference=reference,
                drawn=drawn[reference],
                command=command(method.runs[0]["command"]),
            )
        )
    return sorted(rows, key=lambda row: (-len(row.settings), -least(row)))


def least(row: Row) -> float:
    """The gain in pass@32 in the task in which a method gains least."""
    return min(estimate.value for estimate in row.gains[32].tasks.values())


def everywhere(rows: Sequence[Row]) -> list[Row]:
    """Those that ran in all settings, whose gains can be compared."""
    return [row for row in rows if len(row.settings) == len(SETTINGS)]


def command(full: str) -> str:
    """The part of a run's command that defines the method: the experiment, and overrides after it."""
    parts = shlex.split(full)
    start = next(i for i, part in enumerate(parts) if part.startswith("experiment="))
    shown = [
        part for part in parts[start:] if not part.startswith(("callbacks", "resume=", "hydra.", "export="))
    ]
    return shlex.join(["tagrpo-train", "recipe=common", *shown])


def gains_of_experiments(rows: Sequence[Row]) -> dict[str, str]:
    """Experiment → its gain in pass@32, of the method that changes least in it.

    The gain is the mean over tasks with its interval, or that of each task if their signs differ beyond noise.
    """
    least_changed = sorted(everywhere(rows), key=lambda row: len(shlex.split(row.command)), reverse=True)
    return {
        shlex.split(row.command)[2].removeprefix("experiment="): row.gains[32].short for row in least_changed
    }


def sections(rows: Sequence[Row], runs: Runs) -> dict[str, str]:
    """Return the generated sections of the page by name; `runs` has the untrained policies."""
    ranked = everywhere(rows)
    methods = table(HEADER, [untrained(runs), *map(cells, ranked)])
    if same := list(_same(rows)):
        methods += ["", *same]
    partial = [cells(row) for row in rows if row not in ranked]
    return {
        "summary": "\n".join([*table(COUNTED, counts(ranked)), "", *_summary(rows)]),
        "methods": "\n".join(methods),
        "alone": "\n".join(table(HEADER, partial)),
    }


def counts(ranked: Sequence[Row]) -> list[list[str]]:
    """Count the methods below and above the untrained policy in each task: the rows of a table."""
    counted = []
    for task in TASKS:
        below = sum(row.corrected[task].high < 0 for row in ranked)
        above = sum(row.corrected[task].low > 0 for row in ranked)
        mean = float(np.mean([row.corrected[task].value for row in ranked]))
        counted.append([f"`{task}`", str(below), str(above), points(mean)])
    return counted


@dataclass(frozen=True, kw_only=True)
class Against:
    """Methods compared with their references, beyond noise and corrected for the number of methods."""

    better: Sequence[str]
    worse: Sequence[str]
    differ: Sequence[str]
    """Methods whose difference has a sign that depends on the task."""
    ahead: Mapping[str, float]
    """Task → mean difference in pass@32 of the better methods."""


def against_references(ranked: Sequence[Row]) -> Against:
    """Compare the methods that ran in all settings with their references."""
    found = {row.name: row.corrected_difference for row in ranked if row.name != row.reference}
    means = {name: difference.mean for name, difference in found.items() if difference.mean is not None}
    better = [name for name, mean in means.items() if mean.low > 0]
    ahead = {}
    for task in TASKS:
        differences = [found[name].tasks[task].value for name in better]
        ahead[task] = float(np.mean(differences or [0.0]))
    return Against(
        better=better,
        worse=[name for name, mean in means.items() if mean.high < 0],
        differ=[name for name in found if name not in means],
        ahead=ahead,
    )


def _summary(rows: Sequence[Row]) -> Iterator[str]:
    """What stands below the table of counts, line by line."""
    ranked = everywhere(rows)
    below = {task: sum(row.corrected[task].high < 0 for row in ranked) for task in TASKS}
    worst = max(TASKS, key=lambda task: below[task])
    level = LEVEL / 2 / len(rows)
    rest = [row.name for row in ranked if _below_without(row, worst, level)]
    refused = sum(row.gains[32].mean is None for row in ranked)
    against = against_references(ranked)
    ahead = ", ".join(f"{points(value)} in `{task}`" for task, value in against.ahead.items())
    settings = ", ".join(f"`{name}`" for name in SETTINGS)
    yield f"The table has {len(ranked)} methods, in {settings}. For {refused} of them, tasks differ in pass@32."
    yield f"In the mean over the tasks other than `{worst}`, these end below the untrained policy: {names(rest)}."
    yield from ("", "**Compared with GRPO** that draws about as many responses:", "")
    yield f"- These methods are better: {names(against.better)}. Their mean lead is {ahead} (points)."
    yield f"- These are worse: {names(against.worse)}."
    yield f"- For these, the sign of the difference depends on the task beyond noise: {names(against.differ)}."
    yield "- The others cannot be told apart from GRPO."


def _below_without(row: Row, task: str, level: float) -> bool:
    """Whether the mean of the other tasks is below the untrained policy."""
    others = {
        name: tables for name, tables in row.method.gains[32].items() if not name.startswith(f"{task}/")
    }
    mean = over_tasks(others, level).mean
    return mean is not None and mean.high < 0


def names(methods: Sequence[str]) -> str:
    """List methods as code, or say "none"."""
    return ", ".join(f"`{method}`" for method in methods) or "none"


def _same(rows: Sequence[Row]) -> Iterator[str]:
    for setting in SETTINGS:
        groups: dict[tuple[int, str], list[str]] = {}
        for row in rows:
            if runs := [run for run in row.method.runs if setting_of(run) == setting]:
                groups.setdefault(min((run["seed"], run["weights"]) for run in runs), []).append(
                    f"`{row.name}`"
                )
        for (seed, _), names in groups.items():
            if len(names) > 1:
                yield f"On `{setting}` the weights of {', '.join(names)} at seed {seed} are equal to the last bit."


COUNTED = ("task", "below", "above", "mean gain in pass@32 over all methods, points")
HEADER = (
    *("method", "seeds", "pass@1", "pass@32", *(f"… {task}" for task in TASKS), "difference", "reference"),
    *("drawn", "responses", "command"),
)


def cells(row: Row) -> list[str]:
    """A method in the columns of `HEADER`."""
    seeds = sorted({f(map(len, row.method.gains[32].values())) for f in (min, max)})
    gain = row.gains[32]
    return [
        f"`{row.name}`",
        "–".join(map(str, seeds)),
        row.gains[1].short,
        "tasks differ" if gain.mean is None else gain.mean.signed,
        *(gain.tasks[task].signed if task in gain.tasks else "–" for task in TASKS),
        "" if row.name == row.reference else row.difference.short,
        f"`{row.reference}`",
        f"{row.drawn:.2f}×",
        f"{row.method.mean('rollouts', row.settings):,.0f}",
        f"`{row.command}`",
    ]


def untrained(runs: Runs) -> list[str]:
    """The row of the untrained policies."""
    settings = settings_of(runs)
    levels = {}
    for k in SHOWN:
        levels[k] = {
            task: f"{100 * table_of(settings[f'{task}/{regime}'], BASE, k).to_numpy().mean():.1f}"
            for task, regime in REGIMES.items()
            if f"{task}/{regime}" in settings
        }
    each = [f"0 (of {levels[32][task]} %)" if task in levels[32] else "–" for task in TASKS]
    return ["untrained", "", f"0 (of {', '.join(levels[1].values())} %)", "0", *each, "", "", "", "0", ""]


def draw_gains(rows: Sequence[Row], path: Path) -> None:
    """Gains in pass@32 with 95 % intervals: one line per method, one panel per task; 0 is the untrained policy."""
    figure, axes = plt.subplots(
        1, len(TASKS), figsize=(11, 0.19 * len(rows) + 1), sharey=True, layout="constrained"
    )
    places = np.arange(len(rows))[::-1]
    for axis, task in zip(axes, TASKS, strict=True):
        axis.axvline(0, color="0.4", linewidth=1)
        estimates = [row.gains[32].tasks[task] for row in rows]
        low = [100 * estimate.low for estimate in estimates]
        high = [100 * estimate.high for estimate in estimates]
        axis.hlines(places, low, high, color="tab:blue", linewidth=1.2)
        axis.plot(
            [100 * estimate.value for estimate in estimates], places, "o", color="tab:blue", markersize=3
        )
        axis.tick_params(labelsize=7)
        axis.set_title(f"{task}: gain in pass@32", fontsize=9)
        axis.margins(y=0.01)
    axes[0].set_yticks(places, [row.name for row in rows])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})  # the same bytes every time
    plt.close(figure)


def main() -> None:
    """Write the tables and the picture of the page."""
    digests = kept()
    rows = rows_of(methods_of(*digests))
    draw_gains(everywhere(rows), PAGE.with_name("gains.png"))
    for name, text in sections(rows, digests[0]).items():
        write_section(PAGE, name, text)
    write_json(GAINS_FILE, gains_of_experiments(rows))
    print(PAGE)


if __name__ == "__main__":
    main()
