"""Whether a cell of a study that was run again gives the numbers of the digest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .digest import cell_of
from .runs import RunFiles, find_runs

APART = ("command", "seconds", "starts", "gradients")
"""What a rerun need not share, or, of gradients, what follows from the rest."""


def first_difference(path: Path, content: Mapping[str, Any]) -> str | None:
    """Compare a run with the cell of the digest that has the same command, up to the place of the run.

    Args:
        path: Folder of the run.
        content: The digest.

    Returns:
        Where the first difference is, and both numbers; None where there is none. Weights are compared to the bit.

    Raises:
        FileNotFoundError: the run has not finished.
        ValueError: no cell of the digest has its command.
    """
    (run,) = find_runs(path)
    regime, expected = _cell_of(run, content)
    found = cell_of(run, content["questions"][regime])
    for key in [key for key in expected if key not in APART]:
        if difference := _difference(expected[key], json.loads(json.dumps(found[key])), key):
            return difference
    return None


def _cell_of(run: RunFiles, content: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    ours = _settings(run.command)
    for regime, cells in content["regimes"].items():
        for cell in cells:
            if _settings(cell["command"]) == ours:
                return regime, cell
    raise ValueError(
        f"Expected {run.path} to have the command of a cell of the digest, but none has `{' '.join(ours)}`. "
        "Copy a command from the page, and change nothing but hydra.run.dir."
    )


def _settings(command: str | None) -> list[str]:
    return [part for part in (command or "").split() if not part.startswith("hydra.run.dir=")]


def _difference(expected: Any, found: Any, place: str) -> str | None:
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in [*expected, *(key for key in found if key not in expected)]:
            if difference := _difference(expected.get(key), found.get(key), f"{place}/{key}"):
                return difference
        return None
    return None if expected == found else f"{place} is {found}, but {expected} in the digest"
