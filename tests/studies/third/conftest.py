"""A table of all planned runs, with numbers that are known."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest

from studies.third.claims import POINTS_OF_RUNS, WORDINGS
from studies.third.design import RECIPES, SEEDS, STARTERS, UNTRAINED, kinds_of, runs_of


@pytest.fixture(scope="package")
def complete():
    """A difference of two arms is that of the lengths of their names in points, with a tenth of noise."""
    rows = []
    for task, branch, seed in product(RECIPES, STARTERS, SEEDS):
        for run in runs_of(task, branch, seed):
            noise = np.random.default_rng(len(rows)).normal(0, 0.001)
            told = {name: getattr(run, name) for name in ("task", "branch", "seed", "arm", "path", "rate")}
            points = ("start",) if run.arm == UNTRAINED else POINTS_OF_RUNS
            kinds = kinds_of(branch) if run.arm == UNTRAINED else (run.kind,)
            told |= {f"pass@{k}": len(run.arm) / 100 + noise for k in (1, 32)}
            for kind, wording, point in product(kinds, WORDINGS, points):
                rows.append({**told, "kind": kind, "wording": wording, "point": point})
    return pd.DataFrame(rows)
