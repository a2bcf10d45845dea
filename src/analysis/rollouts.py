"""Recorded rollouts read into tables, and the questions that they answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from ..types import QuestionGroup

COLUMNS = ("iteration", "question", "rephrasing", "template", "answer", "correct", "reward")
OPTIONAL = ("step", "prompt", "response", "advantage", "length", "entropy", "logprob", "score_logprob", "token_ids")


def rollout_files(run: Path, required: Sequence[str] = COLUMNS) -> Iterator[tuple[Path, list[str]]]:
    """The files that `RolloutRecorder` wrote for a run, of all ranks, and their columns.

    Raises:
        ValueError: a file can't be read, or lacks `required` columns.
    """
    for file in sorted((run / "rollouts").glob("*.parquet")):
        try:
            names = pq.read_schema(file).names
        except (OSError, ValueError) as error:
            raise ValueError(f"Expected a Parquet file at {file}, but it can't be read: {error}. Delete it.") from error
        if missing := [name for name in required if name not in names]:
            raise ValueError(f"Expected columns {', '.join(missing)} in {file}, but found {', '.join(names)}.")
        yield file, names


def read_rollouts(run: Path) -> pd.DataFrame:
    """The recorded rollouts of a run: one row per response, in order of iterations.

    Columns: `COLUMNS`, and those of `OPTIONAL` that all files have. A FileNotFoundError where there are no rollouts.
    """
    frames = [
        pd.read_parquet(file, columns=[*COLUMNS, *(name for name in OPTIONAL if name in found)])
        for file, found in rollout_files(run)
    ]
    if not frames:
        raise FileNotFoundError(
            f"Expected rollouts/*.parquet in {run}, but found none. Train with the callback `recorder` (it is one of "
            "callbacks=default)."
        )
    rows = pd.concat(frames, ignore_index=True, join="inner")
    return rows.sort_values("iteration", kind="stable", ignore_index=True)


def groups_of(rollouts: pd.DataFrame) -> list[QuestionGroup]:
    """The questions of recorded rollouts with their rephrasings, as prompts in their (first) template.

    The answer of a correct response stands for the reference; a question that was never solved has an empty one.

    Raises:
        ValueError: prompts were not recorded.

    >>> columns = ["question", "rephrasing", "prompt", "correct", "answer"]
    >>> rows = [("a", 0, "1+1?", False, "3"), ("a", 1, "one and one?", True, "2")]
    >>> groups_of(pd.DataFrame(rows, columns=columns))[0][1:4]
    ('1+1?', ('one and one?',), ('2',))
    """
    if "prompt" not in rollouts:
        raise ValueError("Expected the column `prompt` of the recorded rollouts, but there is none. Record them anew.")
    groups = []
    for id, rows in rollouts.groupby("question", sort=False):
        prompts = rows.drop_duplicates("rephrasing").sort_values("rephrasing")
        solved = rows.loc[rows["correct"], "answer"].dropna()
        answer = (str(solved.iloc[0]) if len(solved) else "",)
        original = prompts.loc[prompts["rephrasing"] == 0, "prompt"]
        if len(original):
            others = tuple(prompts.loc[prompts["rephrasing"] > 0, "prompt"])
            groups.append(QuestionGroup(str(id), original.iloc[0], others, answer))
    return groups
