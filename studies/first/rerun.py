"""Whether a repeated run of the study gives the numbers of the digest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tagrpo.analysis.runs import RunFiles, find_runs

from .digest import entry_of

IGNORED = ("command", "seconds", "starts", "gradients")
"""Keys that are not compared: a rerun may differ in the first three, and gradients follow from the rest."""


def first_difference(path: Path, content: Mapping[str, Any]) -> str | None:
    """Compare a run with the entry of the digest that has the same command, except for the run directory.

    Args:
        path: Folder of the run.
        content: The digest.

    Returns:
        The place of the first difference and both values; None where there is none. Weights are compared bit by bit.

    Raises:
        FileNotFoundError: the run has not finished.
        ValueError: no entry of the digest has its command.
    """
    (run,) = find_runs(path)
    regime, expected = _entry_of(run, content)
    found = entry_of(run, content["questions"][regime])
    for key in [key for key in expected if key not in IGNORED]:
        if difference := _difference(expected[key], json.loads(json.dumps(found[key])), key):
            return difference
    return None


def _entry_of(run: RunFiles, content: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    ours = _settings(run.command)
    for regime, entries in content["regimes"].items():
        for entry in entries:
            if _settings(entry["command"]) == ours:
                return regime, entry
    raise ValueError(
        f"Expected {run.path} to have the command of an entry of the digest, but none has `{' '.join(ours)}`. "
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
