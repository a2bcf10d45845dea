"""Recorded rollouts as tables, and a test for differences in difficulty between rephrasings."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch

from ..metrics.functional import DifficultyTest, difficulty_test, difficulty_variance, t_intervals

REQUIRED = {
    "iteration", "question", "rephrasing", "template", "prompt", "response", "answer", "correct", "reward", "advantage",
    "length", "truncated",
}  # fmt: skip
# a list for each response; any of them may be missing
TOKENS = ("token_ids", "token_logprobs", "token_entropies")


def read_rollouts(run: Path) -> pd.DataFrame:
    """Return the rollouts that all ranks of a run recorded: one row per response, ordered by iteration.

    Columns: the columns of `RolloutRecorder` except `TOKENS`; `file`, the name of the Parquet file; and
    `line`, the row in this file. If a file lacks a column, its rows have NaN there.

    Raises:
        FileNotFoundError: if there are no rollouts.
        ValueError: if a file can't be read, or lacks a required column.
    """
    frames = [_read(file) for file in sorted((run / "rollouts").glob("*.parquet"))]
    if not frames:
        raise FileNotFoundError(
            f"Expected rollouts/*.parquet in {run}, but found none. Train with the callback `recorder` (it "
            "is one of callbacks=default)."
        )
    return pd.concat(frames, ignore_index=True).sort_values("iteration", kind="stable", ignore_index=True)


def _read(file: Path) -> pd.DataFrame:
    try:
        names = pq.read_schema(file).names
    except (OSError, ValueError) as error:
        raise ValueError(
            f"Expected a Parquet file at {file}, but it can't be read: {error}. Delete it."
        ) from error
    if missing := sorted(REQUIRED.difference(names)):
        raise ValueError(f"Expected columns {', '.join(missing)} in {file}, but found {', '.join(names)}.")
    frame = pd.read_parquet(file, columns=[name for name in names if name not in TOKENS])
    return frame.assign(file=file.name, line=range(len(frame)))


def success_by(rollouts: pd.DataFrame) -> pd.DataFrame:
    """Return a table of success rates, with one row per rephrasing; rephrasing 0 is the original question.

    Columns: `responses`, their number; `correct`, the mean of the questions' success rates; `low` and `high`,
    its 95 % t-interval over questions.
    """
    found = {}
    for rephrasing, rows in rollouts.groupby("rephrasing"):
        rates = rows.groupby("question")["correct"].mean().to_numpy(dtype=float)
        (interval,) = t_intervals(torch.tensor(rates)[:, None])
        found[rephrasing] = {"responses": len(rows), **interval._asdict()}
    table = pd.DataFrame(found).T.rename(columns={"value": "correct"})
    return table.rename_axis("rephrasing").astype({"responses": int})


def difficulty_of_run(rollouts: pd.DataFrame) -> tuple[DifficultyTest, float]:
    """Test over all questions of a run whether the prompts of each question are equally difficult.

    A question that occurs again in a later iteration counts as another question, because the policy has
    changed by then.

    Returns:
        The test, and the standard deviation of the true success rate over the prompts of a question, from 0
        to 1. The standard deviation is the root of the mean of `difficulty_variance`: 0 if this mean is
        negative, NaN if no question has enough responses.
    """
    question = rollouts.groupby(["iteration", "question"], sort=False).ngroup().to_numpy()
    prompt = (
        rollouts.groupby(["iteration", "question", "rephrasing", "template"], sort=False).ngroup().to_numpy()
    )
    columns = (
        torch.tensor(rollouts["correct"].to_numpy(dtype=bool)),
        torch.tensor(prompt),
        torch.tensor(question),
    )
    variance = float(difficulty_variance(*columns).nanmean())
    spread = float("nan")
    if np.isfinite(variance):
        spread = float(np.sqrt(max(variance, 0.0)))
    return difficulty_test(*columns), spread
