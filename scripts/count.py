"""How large the repository is, in lines and files, beside the limits that it keeps.

`python scripts/count.py` prints a table; with `--check` it exits with 1 where a limit is exceeded.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def lines(*folders: str) -> int:
    """Lines of the Python files below some folders, blank ones and all."""
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def counts() -> dict[str, tuple[int, int]]:
    """Name of a count → how much there is, and how much there may be."""
    return {
        "lines of src": (lines("src"), 20_000),
        "lines of src without contrib and lab": (lines("src") - lines("src/contrib", "src/lab"), 16_000),
        "files of configs": (len(list((ROOT / "configs").rglob("*.yaml"))), 130),
        "lines of scripts, benchmarks and studies": (lines("scripts", "benchmarks", "studies"), 5_500),
    }


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check, found = parser.parse_args().check, counts()
    for name, (count, limit) in found.items():
        print(f"{name:42} {count:7,} of {limit:7,}{'   exceeded' if count > limit else ''}")
    sys.exit(check and any(count > limit for count, limit in found.values()))


if __name__ == "__main__":
    main()
