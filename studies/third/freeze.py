"""Fingerprints of everything that a verdict is computed with, in `plan.json`: written once, before the runs.

Commands:

    python -m studies.third.freeze            # which files differ from the plan
    python -m studies.third.freeze --write    # the plan is frozen; only of a clean tree, and only once
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path

from tagrpo.files import write_json

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PLAN = HERE / "plan.json"
FROZEN = (
    *(
        f"studies/third/{name}.py"
        for name in ("claims", "design", "freeze", "power", "results", "run", "verdicts")
    ),
    "studies/third/plan.md",
    "examples/expected_gradient.py",
    "examples/starters/*.py",
    "src/lab/exact.py",
    "src/lab/tasks/*.py",
    "src/lab/tasks/*/*.py",
    "src/analysis/statistics.py",
    "src/metrics/functional/*.py",
    "src/modules/advantages/*.py",
    "src/modules/losses.py",
    "src/modules/update.py",
)
"""Patterns, relative to the root of the repository. The rest of the package is what `commit` has."""


def fingerprints() -> dict[str, str]:
    """File → SHA-256 of what it holds."""
    files = sorted(path for pattern in FROZEN for path in ROOT.glob(pattern))
    return {
        path.relative_to(ROOT).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


def differing() -> list[str]:
    """Files that are not what the plan froze."""
    frozen, now = json.loads(PLAN.read_text())["files"], fingerprints()
    return sorted(name for name in frozen.keys() | now.keys() if frozen.get(name) != now.get(name))


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    if not parser.parse_args().write:
        sys.exit(
            "\n".join(["These files are not what the plan froze:", *found])
            if (found := differing())
            else None
        )
    git = ["git", "-C", str(ROOT)]
    if PLAN.exists() or subprocess.check_output([*git, "status", "--porcelain"]):
        sys.exit(f"Expected a clean tree and no {PLAN.name}: a plan is frozen once.")
    commit = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    write_json(PLAN, {"commit": commit, "files": fingerprints()})


if __name__ == "__main__":
    main()
