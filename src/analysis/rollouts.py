"""Recorded rollouts read into tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

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
