"""Every method beside every other: `python -m studies.benchmark.page` writes docs/benchmark.md from the digests.

All have the same settings (`recipe=common`), tasks and, where they need one, the same k. What counts is the gain in
pass@k over the untrained policy that a run began with, with the intervals of the third study.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from tagrpo.analysis.sections import table
from tagrpo.analysis.statistics import LEVEL, Estimate
from tagrpo.runs.files import write_json, write_text

from ..third.verdicts import estimate_of, moments_of
from .digest import BASE, FOLDER, SETTINGS, Runs, gains, paired, read, setting_of, settings_of, table_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmark.md"
TEXT = Path(__file__).with_name("page.md")
"""Texts around the tables of the page."""
GAINS_FILE = FOLDER / "gains.json"
"""The result of `gains_of_experiments`, for docs/methods.md."""
REFERENCES = ("grpo", "grpo_matched")
SHOWN = (1, 8, 32)


@dataclass(frozen=True, kw_only=True)
class Method:
    """Runs of a method, and what they gained."""

    runs: Runs
    gains: Mapping[int, Mapping[str, pd.DataFrame]]
    """k → setting → [seeds, questions] pass@k over that of the untrained policy."""

    def mean(self, name: str, settings: Sequence[str]) -> float:
        """Of a number of the ledger, over settings."""
        values = ([run["ledger"][name] for run in self.runs if setting_of(run) == setting] for setting in settings)
        return float(np.mean([np.mean(of_setting) for of_setting in values]))


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


def kept() -> list[Runs]:
    """The digests beside the code: `benchmark.jsonl.gz`, then others with untrained policies of their own."""
    return [read(path) for path in sorted(FOLDER.glob("*.jsonl.gz"), key=lambda path: path.stem != "benchmark.jsonl")]


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
    return {shlex.split(row.command)[2].removeprefix("experiment="): row.gains[32].signed for row in least_changed}


def page(rows: Sequence[Row], runs: Runs) -> str:
    """The page in Markdown; `runs` has the untrained policies."""
    ranked = everywhere(rows)
    partial = [row for row in rows if row not in ranked]
    sides = {
        side: [row for row in ranked if (row.corrected[of].low > 0 if above else row.corrected[of].high < 0)]
        for side, of, above in (("ahead", 0, True), ("behind", 0, False), ("better", 1, True), ("worse", 1, False))
    }
    words = {side: ", ".join(f"`{row.name}`" for row in of) or "none" for side, of in sides.items()} | {
        "count": str(len(ranked)),
        "below": str(len(sides["behind"])),
        "settings": ", ".join(f"`{name}`" for name in SETTINGS),
        "ranked": "\n".join(table(HEADER, [untrained(runs), *map(cells, ranked)])),
        "same": "".join(f"\n{line}\n" for line in _same(rows)),
        "alone": partial[0].settings[0] if partial else "–",
        "partial": "\n".join(table(HEADER, map(cells, partial))),
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


HEADER = (
    *("method", "seeds", *(f"pass@{k}" for k in SHOWN), "difference", "reference", "drawn"),
    *("responses", "updates", "command"),
)


def cells(row: Row) -> list[str]:
    """A method in the columns of `HEADER`."""
    seeds = sorted({f(map(len, row.method.gains[32].values())) for f in (min, max)})
    difference = "" if row.name == row.reference else row.difference.signed
    return [
        *(f"`{row.name}`", "–".join(map(str, seeds)), *(row.gains[k].signed for k in SHOWN)),
        *(difference, f"`{row.reference}`", f"{row.drawn:.2f}×"),
        *(f"{row.method.mean(name, row.settings):,.0f}" for name in ("rollouts", "updates")),
        f"`{row.command}`",
    ]


def untrained(runs: Runs) -> list[str]:
    """The row of the untrained policies."""
    settings = settings_of(runs).values()
    means = [100 * np.mean([table_of(of, BASE, k).to_numpy().mean() for of in settings]) for k in SHOWN]
    return ["untrained", "", *(f"0 (of {mean:.1f} %)" for mean in means), "", "", "", "0", "0", ""]


def draw_gains(rows: Sequence[Row], path: Path) -> None:
    """Gains with their intervals, one line per method, one panel per k; the line at 0 is the untrained policy."""
    figure, axes = plt.subplots(1, len(SHOWN), figsize=(11, 0.19 * len(rows) + 1), sharey=True, layout="constrained")
    places = np.arange(len(rows))[::-1]
    for axis, k in zip(axes, SHOWN, strict=True):
        axis.axvline(0, color="0.4", linewidth=1)
        low, value, high = (
            100 * np.array([getattr(row.gains[k], at) for row in rows]) for at in ("low", "value", "high")
        )
        axis.hlines(places, low, high, color="tab:blue", linewidth=1.2)
        axis.plot(value, places, "o", color="tab:blue", markersize=3)
        axis.tick_params(labelsize=7)
        axis.set_title(f"gain in pass@{k} over the untrained policy", fontsize=9)
        axis.margins(y=0.01)
    axes[0].set_yticks(places, [row.name for row in rows])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})  # the same bytes every time
    plt.close(figure)


def main() -> None:
    """Write page and picture."""
    digests = kept()
    rows = rows_of(methods_of(*digests))
    draw_gains(everywhere(rows), PAGE.with_suffix("") / "gains.png")
    write_text(PAGE, page(rows, digests[0]))
    write_json(GAINS_FILE, gains_of_experiments(rows))
    print(PAGE)


if __name__ == "__main__":
    main()
