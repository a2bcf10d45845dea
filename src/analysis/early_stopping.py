"""Pass@k of runs that are stopped at their best evaluation.

The best evaluation is chosen on one half of the questions and measured on the other half. With the same
questions for both, the result would be too high, because the noise of the responses raises a maximum.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch

from ..metrics.functional import pass_at_k
from .runs import RunFiles, evaluations_from

Evaluation = Mapping[str, pd.Series]
"""Split → pass@k of each question, by question id."""


def evaluations_of(
    run: RunFiles, splits: Sequence[str], k: int, start: RunFiles | None = None
) -> list[Evaluation]:
    """Return pass@k of a run's evaluations, in the order of iterations.

    Only evaluations that have all `splits`, with at least k responses to each question, are returned. `start`
    is the run of the untrained policy. The test of `start` comes first if `run` has evaluations but was not
    evaluated before training.
    """
    found: list[Evaluation] = []
    for _, evaluation in evaluations_from(run, start):
        curves: dict[str, pd.Series] = {}
        for split in splits:
            rows = evaluation["splits"].get(split, {}).get("questions")
            if rows and min(row["n"] for row in rows) >= k:
                curves[split] = _curve(rows, k)
        if len(curves) == len(splits):
            found.append(curves)
    return found


def _curve(rows: Sequence[Mapping[str, int | str]], k: int) -> pd.Series:
    frame = pd.DataFrame(rows).set_index("id").sort_index()
    n = torch.tensor(frame["n"].to_numpy())
    correct = torch.tensor(frame["correct"].to_numpy())
    return pd.Series(pass_at_k(n, correct, k).numpy(), frame.index)


def stopped(evaluations: Sequence[Evaluation]) -> dict[str, pd.Series]:
    """Return each question's pass@k at the evaluation that is best on the other half of the questions.

    In the order of ids, a split's questions at even positions are one half, and its questions at odd
    positions the other half. Pass@k is averaged over a half's questions in each split, then over splits. The
    best evaluation is the first evaluation with the highest average. Splits with a single question are left
    out of the choice; if there are no other splits, the last evaluation is taken.

    Returns:
        Split → pass@k of each question.

    >>> early, late = pd.Series([1.0, 0.5, 1.0, 0.5], list("abcd")), pd.Series([0.0, 1.0, 0.0, 1.0], list("abcd"))
    >>> stopped([{"test": early}, {"test": late}])["test"].tolist()  # b and d choose for a and c, and vice versa
    [0.0, 0.5, 0.0, 0.5]
    """
    found = {split: curve.astype(float).copy() for split, curve in evaluations[0].items()}
    choosing = [split for split, curve in found.items() if len(curve) > 1]
    for half in (0, 1):
        best = evaluations[-1]
        if choosing:
            halves = [
                [curves[split].iloc[1 - half :: 2].mean() for split in choosing] for curves in evaluations
            ]
            best = evaluations[int(np.argmax(np.mean(halves, axis=1)))]
        for split, values in found.items():
            own = values.index[half::2]
            values.loc[own] = best[split].loc[own]
    return found


def stopped_tables(
    runs: Sequence[RunFiles], splits: Sequence[str], k: int, starts: Sequence[RunFiles] = ()
) -> list[pd.DataFrame] | None:
    """Return pass@k of runs that are stopped at their best evaluation: a table [seeds, questions] per split.

    `starts` are runs of the untrained policy. If a run was not evaluated before training, its first
    evaluation is the test of the start that has the same seed. Return None if a run has fewer than two
    evaluations with k responses to the questions of all splits, or if evaluations have different questions.
    """
    of_seed = {start.seed: start for start in starts}
    rows: dict[str, dict[int, pd.Series]] = {split: {} for split in splits}
    for run in runs:
        evaluations = evaluations_of(run, splits, k, of_seed.get(run.seed))
        asked = [{split: list(curve.index) for split, curve in curves.items()} for curves in evaluations]
        if len(evaluations) < 2 or any(questions != asked[0] for questions in asked):
            return None
        for split, values in stopped(evaluations).items():
            rows[split][run.seed] = values
    tables = [pd.DataFrame(of_seeds).T for of_seeds in rows.values()]
    return None if any(table.isna().any().any() for table in tables) else tables
