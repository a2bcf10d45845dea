"""Every method beside every other: `python -m studies.second.benchmark` writes docs/benchmark.md from the digests.

All have the same settings (`recipe=common`), tasks and, where they need one, the same k. What counts is the gain in
pass@k over the untrained policy that a run began with, with the intervals of the study.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from tagrpo.analysis.sections import table
from tagrpo.analysis.statistics import LEVEL, Estimate
from tagrpo.runs.files import write_json, write_text

from ..third.verdicts import estimate_of, moments_of
from .digest import FOLDER, read
from .run import LEFT
from .tables import BASE, experiment_of, gains, paired, settings_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmark.md"
TEXT = Path(__file__).with_name("benchmark.md")
"""Texts around the tables of the page."""
GAINS_FILE = FOLDER / "gains.json"
"""The result of `gains_of_experiments`, for docs/methods.md."""
SETTINGS = ("arithmetic/mixed", "shortest_path/easy", "countdown/easy")
OWN, STUDY = "benchmark", "factors"
FROM_STUDY = ("grpo", "grpo_matched", "grpo_ds", "exposure", "anchored", "pooled", "ta_grpo", "ta_grpo_corrected")
"""Methods that the study has run with these settings; its others are controls, or have another k."""
REFERENCES = ("grpo", "grpo_matched")
SHOWN = (1, 8, 32)
SPLIT = "test_id"

Digests = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Method:
    """Runs of a method, and what they gained."""

    runs: Sequence[Mapping[str, Any]]
    gains: Mapping[int, Mapping[str, pd.DataFrame]]
    """k → setting → [seeds, questions] pass@k over that of the untrained policy."""

    def mean(self, name: str, settings: Sequence[str]) -> float:
        """Of a number of the ledger, over settings."""
        values: dict[str, list[float]] = {}
        for run in self.runs:
            values.setdefault(f"{run['task']}/{run['regime']}", []).append(run["ledger"][name])
        return float(np.mean([np.mean(values[setting]) for setting in settings]))


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method on the page."""

    name: str
    method: Method
    settings: Sequence[str]
    """Where it has run."""
    gains: Mapping[int, Estimate]
    """k → gain in pass@k."""
    difference: Estimate
    """Pass@32 − that of `reference`."""
    corrected: tuple[Estimate, Estimate]
    """Gain in pass@32 and difference, with intervals that are corrected for the number of methods."""
    reference: str
    drawn: float
    """Responses drawn for training, those of dropped groups too, in units of those of `reference`."""
    command: str


def methods_of(digests: Digests) -> dict[str, Method]:
    """The methods of the page, without those that have left; a run of the benchmark goes before one of the study.

    Where the benchmark has an untrained policy of its own for a setting and seed, its runs are compared with that.
    """
    shown = {grid: [run for run in runs if setting_of(run) in SETTINGS] for grid, runs in digests.items()}
    starts = settings_of(shown[STUDY])
    found = {}
    for grid, names in ((STUDY, FROM_STUDY), (OWN, dict.fromkeys(run["method"] for run in shown[OWN]))):
        settings = settings_of(shown[grid])
        for name in names:
            runs = [run for run in shown[grid] if run["method"] == name]
            if name != BASE and runs and f"experiment={experiment_of(runs[0]['command'])}" not in LEFT:
                found[name] = Method(runs=runs, gains={k: gains(settings, starts, name, k, SPLIT) for k in SHOWN})
    return found


def setting_of(run: Mapping[str, Any]) -> str:
    """The task in its regime."""
    return f"{run['task']}/{run['regime']}"


def rows_of(methods: Mapping[str, Method]) -> list[Row]:
    """The methods, those that ran in all settings first, and then the largest gain in pass@32."""
    level = LEVEL / 2 / len(methods)
    rows = []
    for name, method in methods.items():
        settings = list(method.gains[32])
        drawn = {
            other: method.mean("rollouts", settings) / methods[other].mean("rollouts", settings) for other in REFERENCES
        }
        reference = min(drawn, key=lambda other: abs(np.log(drawn[other])))
        theirs = methods[reference].gains[32]
        difference = moments_of({setting: paired(of, theirs[setting]) for setting, of in method.gains[32].items()})
        found = {k: moments_of(of) for k, of in method.gains.items()}
        rows.append(
            Row(
                name=name,
                method=method,
                settings=settings,
                gains={k: estimate_of(of) for k, of in found.items()},
                difference=estimate_of(difference),
                corrected=(estimate_of(found[32], level), estimate_of(difference, level)),
                reference=reference,
                drawn=drawn[reference],
                command=command(method.runs[0]["command"]),
            )
        )
    return sorted(rows, key=lambda row: (-len(row.settings), -row.gains[32].value))


def everywhere(rows: Sequence[Row]) -> list[Row]:
    """Those that ran in all settings, whose gains can be compared."""
    return [row for row in rows if len(row.settings) == len(SETTINGS)]


def command(full: str) -> str:
    """The part of a run's command that defines the method: the experiment, and overrides after it."""
    parts = shlex.split(full)
    start = next(i for i, part in enumerate(parts) if part.startswith("experiment="))
    shown = [part for part in parts[start:] if not part.startswith(("callbacks", "resume=", "hydra.", "export="))]
    return shlex.join(["tagrpo-train", "recipe=common", *shown])


def gains_of_experiments(rows: Sequence[Row]) -> dict[str, str]:
    """Experiment → its gain in pass@32 with its interval, of the method that changes least in it."""
    least_changed = sorted(everywhere(rows), key=lambda row: len(shlex.split(row.command)), reverse=True)
    return {experiment_of(row.command): row.gains[32].signed for row in least_changed}


def page(rows: Sequence[Row], digests: Digests) -> str:
    """The page in Markdown."""
    ranked = everywhere(rows)
    partial = [row for row in rows if row not in ranked]
    starts = settings_of([run for run in digests[STUDY] if setting_of(run) in SETTINGS]).values()
    means = [100 * np.mean([of.pass_at_k(BASE, k, SPLIT).to_numpy().mean() for of in starts]) for k in SHOWN]
    untrained = ["untrained", "", *(f"0 (of {mean:.1f} %)" for mean in means), "", "", "", "0", "0", ""]
    sides = {
        side: [row for row in ranked if (row.corrected[of].low > 0 if above else row.corrected[of].high < 0)]
        for side, of, above in (("ahead", 0, True), ("behind", 0, False), ("better", 1, True), ("worse", 1, False))
    }
    words = {side: ", ".join(f"`{row.name}`" for row in of) or "none" for side, of in sides.items()} | {
        "count": str(len(ranked)),
        "below": str(len(sides["behind"])),
        "settings": ", ".join(f"`{name}`" for name in SETTINGS),
        "ranked": "\n".join(_table(ranked, untrained)),
        "same": "".join(f"\n{line}\n" for line in _same(rows)),
        "alone": partial[0].settings[0] if partial else "–",
        "partial": "\n".join(_table(partial)),
    }
    return Template(TEXT.read_text(encoding="utf-8")).substitute(words)


def _same(rows: Sequence[Row]) -> Iterator[str]:
    for setting in SETTINGS:
        groups: dict[tuple[int, str], list[str]] = {}
        for row in rows:
            if runs := [run for run in row.method.runs if setting_of(run) == setting]:
                groups.setdefault(min((run["seed"], run["weights"]) for run in runs), []).append(f"`{row.name}`")
        for (seed, _), names in groups.items():
            if len(names) > 1:
                yield f"On `{setting}` the weights of {', '.join(names)} at seed {seed} are equal to the last bit."


def _table(rows: Sequence[Row], *first: Sequence[str]) -> Iterator[str]:
    header = ["method", "seeds", *(f"pass@{k}" for k in SHOWN), "difference", "reference", "drawn"]
    shown = [
        [
            f"`{row.name}`",
            "–".join(map(str, sorted({f(map(len, row.method.gains[32].values())) for f in (min, max)}))),
            *(row.gains[k].signed for k in SHOWN),
            "" if row.name == row.reference else row.difference.signed,
            f"`{row.reference}`",
            f"{row.drawn:.2f}×",
            *(f"{row.method.mean(name, row.settings):,.0f}" for name in ("rollouts", "updates")),
            f"`{row.command}`",
        ]
        for row in rows
    ]
    yield from table([*header, "responses", "updates", "command"], [*first, *shown])


def draw_intervals(
    axis: Any, of: Sequence[Estimate], places: np.ndarray, marker: str, width: float, look: Mapping[str, Any]
) -> None:
    """Estimates in points with their intervals, one above the other."""
    lows, values, highs = (100 * np.array([getattr(one, name) for one in of]) for name in ("low", "value", "high"))
    axis.hlines(places, lows, highs, color=look["color"], linewidth=width)
    axis.plot(values, places, marker, **look)
    axis.tick_params(labelsize=7)


def save(figure: Any, path: Path) -> None:
    """Write a figure, the same bytes every time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def draw_gains(rows: Sequence[Row], path: Path) -> None:
    """Gains with their intervals, one line per method, one panel per k; the line at 0 is the untrained policy."""
    figure, axes = plt.subplots(1, len(SHOWN), figsize=(11, 0.19 * len(rows) + 1), sharey=True, layout="constrained")
    places = np.arange(len(rows))[::-1]
    for axis, k in zip(axes, SHOWN, strict=True):
        axis.axvline(0, color="0.4", linewidth=1)
        draw_intervals(axis, [row.gains[k] for row in rows], places, "o", 1.2, {"color": "tab:blue", "markersize": 3})
        axis.set_title(f"gain in pass@{k} over the untrained policy", fontsize=9)
        axis.margins(y=0.01)
    axes[0].set_yticks(places, [row.name for row in rows])
    save(figure, path)


def main() -> None:
    """Write page and picture."""
    digests = {name: read(FOLDER / f"{name}.jsonl.gz") for name in (STUDY, OWN)}
    rows = rows_of(methods_of(digests))
    draw_gains(everywhere(rows), PAGE.with_suffix("") / "gains.png")
    write_text(PAGE, page(rows, digests))
    write_json(GAINS_FILE, gains_of_experiments(rows))
    print(PAGE)


if __name__ == "__main__":
    main()
