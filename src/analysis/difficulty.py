"""Tests whether the rephrasings of a run differ in difficulty."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from ..metrics.functional import DifficultyTest, difficulty_test, difficulty_variance, t_intervals


def success_by(rollouts: pd.DataFrame, key: str = "rephrasing") -> pd.DataFrame:
    """Success rate of recorded responses by `rephrasing` (0 is the original question) or `template`.

    Returns:
        One row per value of the key: `responses`; `correct`, the mean over questions of their success rates; `low` and
        `high`, its 95 % t-interval over questions.
    """
    found = {}
    for value, rows in rollouts.groupby(key):
        rates = rows.groupby("question")["correct"].mean().to_numpy(dtype=float)
        (interval,) = t_intervals(torch.tensor(rates)[:, None])
        found[value] = {"responses": len(rows), "correct": interval.value, "low": interval.low, "high": interval.high}
    return pd.DataFrame(found).T.rename_axis(key).astype({"responses": int})


def difficulty_of_run(rollouts: pd.DataFrame) -> tuple[DifficultyTest, float]:
    """Test of the hypothesis that the prompts of a question are equally difficult, over all questions of a run.

    A question that returns in a later iteration counts as another one, because the policy has changed in between.
    Returns also the standard deviation of the true success rate over the prompts of a question, in 0..1: the root of
    the mean of `difficulty_variance`, 0 where that is negative, NaN where no question has enough responses.
    """
    question = rollouts.groupby(["iteration", "question"], sort=False).ngroup().to_numpy()
    prompt = rollouts.groupby(["iteration", "question", "rephrasing", "template"], sort=False).ngroup().to_numpy()
    columns = (torch.tensor(rollouts["correct"].to_numpy(dtype=bool)), torch.tensor(prompt), torch.tensor(question))
    variance = float(difficulty_variance(*columns).nanmean())
    return difficulty_test(*columns), float(np.sqrt(max(variance, 0.0))) if np.isfinite(variance) else float("nan")
