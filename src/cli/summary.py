"""The end of a run in the terminal: results, files, and the commands that can follow."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..runs.directory import override

CARRIED = (
    "experiment", "recipe", "scale", "data", "data_path", "model", "template", "reward", "rollout", "protocol",
    "averages", "trainer", "strategy", "--config-dir", "hydra",
)  # fmt: skip
"""Groups and settings of a training that its evaluation needs too, and folders of options."""
SHOWN = {"pass@k": ("pass@k", "exact_pass@k", "pass@k_average"), "Cover@τ": ("cover@tau", "exact_cover@tau")}
"""Title of a table → the metrics in it."""


def show(metrics: Mapping[str, float]) -> None:
    """Print pass@k, and Cover@τ where it was asked for, by split."""
    for title, shown in SHOWN.items():
        curves: dict[str, dict[str, float]] = defaultdict(dict)
        for name, value in metrics.items():
            if name.startswith(tuple(f"{what}/" for what in shown)):
                what, split, place = name.split("/")
                curves[f"{split} (average)" if what == "pass@k_average" else split][place] = value
        places = sorted({place for points in curves.values() for place in points}, key=float)
        table = Table("split", *(f"@{place}" for place in places), title=f"{title}, in percent")
        for split, points in curves.items():
            table.add_row(split, *(f"{100 * points[place]:.1f}" if place in points else "" for place in places))
        if curves:
            Console().print(table)


def conclude(
    metrics: Mapping[str, float], directory: Path, overrides: Sequence[str], name: str, iterations: int | None
) -> None:
    """Print the results of a training run of `iterations` iterations, its files, and the commands that can follow."""
    show(metrics)
    directory = directory.relative_to(Path.cwd()) if directory.is_relative_to(Path.cwd()) else directory
    found = sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
    print(f"In {directory}: {', '.join(found)}. Next:")
    for command in following(directory, overrides, name, iterations, set(found)):
        print(f"  {shlex.join(command)}")


def following(
    directory: Path, overrides: Sequence[str], name: str, iterations: int | None, found: set[str]
) -> list[list[str]]:
    """Commands that can follow a run: evaluate, export, report, train for twice as long."""
    commands, model = [["tagrpo-report", str(directory)]], directory / "model"
    if "model" in found:
        carried = [o for o in overrides if re.split("[./=]", o.lstrip("+~"), maxsplit=1)[0] in CARRIED]
        carried = [o for o in carried if not o.startswith(("model=", "model.path="))]
        pretrained = ["model=pretrained", override("model.path", model)]
        commands.insert(0, ["tagrpo-eval", override("name", name), *carried, *pretrained])
    elif "checkpoints" in found:
        commands.insert(0, ["tagrpo-export", str(directory), str(model)])
    if "checkpoints" in found and iterations:
        own = [override("hydra.run.dir", directory), "resume=auto", f"iterations={2 * iterations}"]
        commands.append(["tagrpo-train", *(o for o in overrides if not o.startswith(("iterations=", "resume="))), *own])
    return commands
