"""Repeat a run of the study and compare it with the digest, to the bit of its weights.

    python -m studies.second.rerun factors countdown/easy/ta_grpo/seed3

Takes the command of the digest, in another folder. A run that goes on from another's policy needs that one's folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tagrpo.analysis.runs import RunFiles

from .digest import FOLDER, entry_of, read

IGNORED = ("task", "regime", "method", "seed", "command", "starts", "seconds", "took", "provenance")
"""Keys that name a run or differ between two runs of one command."""


def repeated(command: str, folder: Path) -> dict[str, Any]:
    """Train with the command in another folder, and digest the run."""
    overrides = [part for part in shlex.split(command)[3:] if not part.startswith("hydra.run.dir=")]
    train = [sys.executable, "-m", "tagrpo.cli.train", *overrides, f"hydra.run.dir={folder}"]
    subprocess.run(train, check=True, env={"OMP_NUM_THREADS": "1", **os.environ})
    (folder / "run.json").write_text(json.dumps({"starts": 1}))
    found: dict[str, Any] = json.loads(json.dumps(entry_of(RunFiles("", 0, folder))))
    return found


def first_difference(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str | None:
    """The first key in which two entries differ, with both values; None where they are equal."""
    for key in [key for key in expected if key not in IGNORED]:
        one, other = (_without_seconds(entry[key]) if key == "course" else entry[key] for entry in (expected, found))
        if one != other:
            return f"{key} is {other}, but {one} in the digest"
    return None


def _without_seconds(course: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in point.items() if name != "seconds"} for point in course]


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grid")
    parser.add_argument("run", help="<task>/<regime>/<method>/seed<k>")
    chosen = parser.parse_args()
    entries = {"{task}/{regime}/{method}/seed{seed}".format(**e): e for e in read(FOLDER / f"{chosen.grid}.jsonl.gz")}
    expected = entries[chosen.run]
    with tempfile.TemporaryDirectory() as folder:
        difference = first_difference(expected, repeated(expected["command"], Path(folder)))
    print(f"{chosen.run}: {difference or 'equal to the digest, bit for bit'}")
    sys.exit(difference is not None)


if __name__ == "__main__":
    main()
