"""What docs/smollm2.md prints of `make demo-lm`: `python -m studies.smollm2.demo runs/demo_lm` writes it from the runs."""

import json
import shutil
import sys
from pathlib import Path

import pandas as pd

from tagrpo.analysis.sections import table
from tagrpo.analysis.statistics import Estimate
from tagrpo.files import write_section

PAGE = Path(__file__).resolve().parents[2] / "docs" / "smollm2.md"
PICTURE = "pass_at_k.png"
METHODS = {
    "base": "untrained",
    "grpo": "GRPO",
    "grpo_matched": "GRPO, as many samples",
    "ta_grpo": "TA-GRPO",
}
"""Runs of the demo → their names on the page."""
TESTS = {"test_id": "test", "test_phrasing": "other wordings"}
PHASES = {
    "seconds/generate": "sampling",
    "seconds/update": "update",
    "seconds/validate": "validation",
}
"""Column of metrics.csv → the part of a training that its seconds are of."""


def sections(root: Path) -> dict[str, str]:
    """Return the sections of the page by name, from the runs below `root`."""
    results = json.loads((root / "results.json").read_text())
    return {"demo": "\n".join(scores(results)), "minutes": "\n".join(minutes(root))}


def scores(results: dict[str, dict[str, dict[str, dict[str, dict[str, float]]]]]) -> list[str]:
    """Return the table of pass@1 and pass@32 in both tests, in percent with 95 % intervals."""
    rows = []
    for split, name in TESTS.items():
        for k in ("1", "32"):
            cells = [f"{name}, pass@{k}"]
            for method in METHODS:
                found = results["pass_at_k"][split][method][k]
                cells.append(str(Estimate(**found)))
            rows.append(cells)
    return table(["%", *METHODS.values()], rows)


def minutes(root: Path) -> list[str]:
    """Return the table of the minutes of each run by phase; what is left are tests, loading and diagnostics."""
    rows = []
    for method, name in METHODS.items():
        folder = root / method / "seed0"
        whole = json.loads((folder / "run.json").read_text())["seconds"]
        metrics = pd.read_csv(folder / "metrics.csv")
        spent = [float(metrics[phase].sum()) if phase in metrics else 0.0 for phase in PHASES]
        parts = [*spent, whole - sum(spent), whole]
        rows.append([name, *(f"{seconds / 60:.1f}" for seconds in parts)])
    return table(["minutes", *PHASES.values(), "tests and the rest", "whole run"], rows)


def main() -> None:
    """Write the sections and the picture of the page."""
    root = Path(sys.argv[1])
    for name, text in sections(root).items():
        write_section(PAGE, name, text)
    shutil.copy(root / PICTURE, PAGE.with_name(f"smollm2_{PICTURE}"))
    print(PAGE)


if __name__ == "__main__":
    main()
