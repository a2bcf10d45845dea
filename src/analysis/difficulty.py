"""Whether the rephrasings of a run differ in difficulty, and how difficult its questions were.

`python -m tagrpo.analysis.difficulty RUN QUESTIONS.jsonl RATED.jsonl` writes the questions that a run was trained on
with their `success_rate`, by which the next stage of a curriculum takes some (`data.train.within.success_rate`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from ..metrics.functional import DifficultyTest, bootstrap_intervals, difficulty_test, difficulty_variance
from ..runs.files import write_text
from .rollouts import read_rollouts


def success_by(rollouts: pd.DataFrame, key: str = "rephrasing") -> pd.DataFrame:
    """Success rate of recorded responses by `rephrasing` (0 is the original question) or `template`.

    Returns:
        One row per value of the key: `responses`; `correct`, the mean over questions of their success rates; `low` and
        `high`, its 95 % interval by bootstrap over questions.
    """
    found = {}
    for value, rows in rollouts.groupby(key):
        rates = rows.groupby("question")["correct"].mean().to_numpy(dtype=float)
        (interval,) = bootstrap_intervals(torch.tensor(rates)[:, None])
        found[value] = {"responses": len(rows), "correct": interval.value, "low": interval.low, "high": interval.high}
    return pd.DataFrame(found).T.rename_axis(key).astype({"responses": int})


def difficulty_of_run(rollouts: pd.DataFrame) -> tuple[DifficultyTest, float]:
    """Test of the hypothesis that the prompts of a question are equally difficult, over all questions of a run.

    A question that returns in a later iteration counts as another one, because the policy has changed in between.

    Returns:
        The result of `difficulty_test`; and the standard deviation of the true success rate over the prompts of a
        question, in 0..1: the root of the mean of `difficulty_variance`, 0 where that is negative, NaN where no
        question has enough responses.
    """
    question = rollouts.groupby(["iteration", "question"], sort=False).ngroup().to_numpy()
    prompt = rollouts.groupby(["iteration", "question", "rephrasing", "template"], sort=False).ngroup().to_numpy()
    columns = (torch.tensor(rollouts["correct"].to_numpy(dtype=bool)), torch.tensor(prompt), torch.tensor(question))
    variance = float(difficulty_variance(*columns).nanmean())
    return difficulty_test(*columns), float(np.sqrt(max(variance, 0.0))) if np.isfinite(variance) else float("nan")


def rated_questions(rollouts: pd.DataFrame, questions: Path) -> list[dict[str, object]]:
    """The rows of a file of questions that were sampled, each with its `success_rate`.

    It is the share of correct responses to the original question in the last iteration that sampled it. Replayed
    successes count as responses. Ids are those of `JsonLinesSource`.

    Raises:
        ValueError: none of the questions was sampled.
    """
    originals = rollouts[rollouts["rephrasing"] == 0]
    last = originals.groupby("question")["iteration"].transform("max")
    rates = originals[originals["iteration"] == last].groupby("question")["correct"].mean()
    rated = []
    with questions.open(encoding="utf-8") as file:
        rows = [(number, json.loads(line)) for number, line in enumerate(file, start=1) if line.strip()]
    for number, row in rows:
        if (name := str(row.get("id", f"{questions.stem}-{number}"))) in rates:
            rated.append({**row, "id": name, "success_rate": float(rates[name])})
    if not rated:
        raise ValueError(
            f"Expected ids of the run, such as {', '.join(map(str, rates.index[:3]))}, in {questions}, but found none. "
            "Give the file that the run was trained on."
        )
    return rated


if __name__ == "__main__":
    run, source, target = map(Path, sys.argv[1:4])
    lines = [json.dumps(row, ensure_ascii=False) for row in rated_questions(read_rollouts(run), source)]
    write_text(target, "".join(f"{line}\n" for line in lines))
