"""Recorded rollouts read into tables."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

REQUIRED = {
    "iteration", "question", "rephrasing", "template", "prompt", "response", "answer", "correct", "reward", "advantage",
    "length", "truncated",
}  # fmt: skip
TOKENS = ("token_ids", "token_logprobs", "token_entropies")
"""Columns with a list for each response; any of them may be missing."""


def read_rollouts(run: Path) -> pd.DataFrame:
    """The recorded rollouts of a run, of all ranks: one row per response, in order of iterations.

    Columns: those of `RolloutRecorder` but `TOKENS`, NaN where a file lacks one; `file` and `line`, the name of the
    Parquet file and the row in it.

    Raises:
        FileNotFoundError: there are no rollouts.
        ValueError: a file can't be read, or lacks a column that all have.
    """
    frames = [_read(file) for file in sorted((run / "rollouts").glob("*.parquet"))]
    if not frames:
        raise FileNotFoundError(
            f"Expected rollouts/*.parquet in {run}, but found none. Train with the callback `recorder` (it is one of "
            "callbacks=default)."
        )
    return pd.concat(frames, ignore_index=True).sort_values("iteration", kind="stable", ignore_index=True)


def _read(file: Path) -> pd.DataFrame:
    try:
        names = pq.read_schema(file).names
    except (OSError, ValueError) as error:
        raise ValueError(f"Expected a Parquet file at {file}, but it can't be read: {error}. Delete it.") from error
    if missing := sorted(REQUIRED.difference(names)):
        raise ValueError(f"Expected columns {', '.join(missing)} in {file}, but found {', '.join(names)}.")
    frame = pd.read_parquet(file, columns=[name for name in names if name not in TOKENS])
    return frame.assign(file=file.name, line=range(len(frame)))
