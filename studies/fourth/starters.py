"""Which starters are as planned: checked on the untrained policies, before any arm is run.

    python -m studies.third.run runs/fourth --branches gap0 gap1 gap2 gap3 gap4 --seeds 10 11 12 --arms
    python -m studies.fourth.starters runs/fourth

`--arms` without a name makes the starters and tests them untrained.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from ..third.design import GAPS, UNTRAINED

SPAN = 0.1
"""Least difference between the largest and the least gap."""
LEAST = 0.25
"""Largest distance of the least gap from 0."""
SOLVED = 0.5
"""Largest share of the training questions that the untrained policy solves at the least gap."""


def measured(folder: Path) -> pd.DataFrame:
    """Read the untrained policies of a study.

    Returns:
        A row for each task, branch and seed, with `gap` (success on the reformulations of the training questions −
        success on the questions) and `solved` (success on the questions), both exact.
    """
    rows = []
    for file in sorted(folder.glob(f"*/gap*/seed*/{UNTRAINED}-*.json")):
        start = json.loads(file.read_text())
        original = np.mean(start["prompts"]["original"])
        gap = np.mean(start["prompts"]["wording"]) - original
        told = {name: start[name] for name in ("task", "branch", "seed")}
        rows.append({**told, "gap": gap, "solved": original})
    if not rows:
        raise FileNotFoundError(
            f"Expected untrained policies in {folder}, but there are none: run them first."
        )
    return pd.DataFrame(rows).set_index(["task", "seed", "branch"]).sort_index()


def fault(gaps: Mapping[str, float], solved: float) -> str:
    """Return why the starters of a seed are not as planned; empty if they are.

    Args:
        gaps: Branch → gap.
        solved: Success on the questions at the least gap.
    """
    if missing := [branch for branch in GAPS if branch not in gaps]:
        return f"no {', '.join(missing)}"
    values = np.array([gaps[branch] for branch in GAPS])
    if abs(values[0]) > LEAST:
        return f"the least gap is {100 * values[0]:+.0f} points"
    if values[-1] - values[0] < SPAN:
        return f"the gap grows by {100 * (values[-1] - values[0]):.0f} points"
    if (np.diff(values) <= 0).any():
        return "the gap does not grow at each step"
    if solved > SOLVED:
        return f"{100 * solved:.0f} % of the questions are solved"
    return ""


def faults(starts: pd.DataFrame) -> pd.Series:
    """(Task, seed) → why its starters are not as planned; empty if they are."""
    gaps = starts["gap"].unstack("branch")
    solved = starts["solved"].unstack("branch").reindex(columns=list(GAPS))
    reasons = []
    for place in gaps.index:
        of_branch = {str(branch): float(gap) for branch, gap in gaps.loc[place].dropna().items()}
        reasons.append(fault(of_branch, float(solved[GAPS[0]][place])))
    return pd.Series(reasons, gaps.index, dtype=str)


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of the runs")
    found = faults(measured(parser.parse_args().folder)).reset_index(name="why")
    for task, seed, why in found.itertuples(index=False):
        print(f"{task} seed {seed}: {why or 'as planned'}")


if __name__ == "__main__":
    main()
