"""The records of `RolloutRecorder` as columns of a page: a row is a response, a cell a question's visit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ..analysis.rollouts import COLUMNS, rollout_files
from ..metrics.functional import CAUSES, zero_gradient_causes

WHOLE = {"iteration": "i4", "rephrasing": "u2", "length": "u4", "file": "u4", "line": "u4"}
NUMBERS = ("reward", "advantage", "entropy", "ratio", "kl", "clipped", "logprob", "score_logprob")
"""Numbers of a response that are shown where they were recorded, beside reward terms."""
STRINGS = ("question", "prompt", "template", "answer")
TOKENS = ("token_ids", "token_logprobs", "token_entropies")
FLAGS = ("correct", "truncated", "masked")
"""Bits of a row's `flags`, the lowest first."""
CELL_CAUSES = ("gradient", *CAUSES)
"""Values of a cell's `cause`: it has a gradient, or why it has none (`zero_gradient_causes`)."""


@dataclass(frozen=True)
class Recorded:
    """The responses of a run in the order of iterations, questions and prompts."""

    files: Sequence[Path]
    """The Parquet files, by name."""
    frame: pd.DataFrame
    """All their columns but those of tokens, one row per response, and `file` and `line`, where the row stands."""

    @classmethod
    def read(cls, run: Path) -> Recorded | None:
        """The rollouts of a run directory; None where it has none. Errors are those of `rollout_files`.

        Raises:
            ValueError: see `rollout_files`.
        """
        found = list(rollout_files(run, (*COLUMNS, "response")))
        if not found:
            return None
        frames = [pd.read_parquet(file, columns=[n for n in names if n not in TOKENS]) for file, names in found]
        places = [frame.assign(file=i, line=np.arange(len(frame))) for i, frame in enumerate(frames)]
        frame = pd.concat(places, ignore_index=True)
        question, template = (pd.factorize(frame[name])[0] for name in ("question", "template"))
        order = np.lexsort((template, frame["rephrasing"], question, frame["iteration"]))
        return cls([file for file, _ in found], frame.iloc[order].reset_index(drop=True))

    @cached_property
    def codes(self) -> dict[str, tuple[np.ndarray, pd.Index]]:
        """Column of strings → [R] number of each row's value, and the distinct values in order of appearance."""
        return {name: pd.factorize(self.frame[name], use_na_sentinel=False) for name in STRINGS if name in self.frame}

    def flag(self, name: str) -> np.ndarray:
        """[R] bool, a column of `FLAGS`; False where nothing was recorded."""
        return self.frame[name].eq(True).to_numpy() if name in self.frame else np.zeros(len(self.frame), bool)

    @cached_property
    def rows(self) -> dict[str, np.ndarray]:
        """Column → [R] number of each response, to be shown and to find it again."""
        numbers = [str(name) for name in self.frame if name in NUMBERS or str(name).startswith("reward_term/")]
        return {
            **{name: self.frame[name].to_numpy(kind) for name, kind in WHOLE.items()},
            **{name: codes.astype("u4") for name, (codes, _) in self.codes.items()},
            "flags": np.packbits([self.flag(name) for name in FLAGS], axis=0, bitorder="little")[0],
            **{name: self.frame[name].to_numpy("f4") for name in numbers},
        }

    @cached_property
    def cells(self) -> dict[str, np.ndarray]:
        """Column → [C] number of each question of an iteration, in the order of the rows.

        `column` (iteration), `question`, `first` (its first row), `samples`, `correct`, `cause` (in `CELL_CAUSES`).
        """
        iteration, question = self.rows["iteration"], self.rows["question"]
        first, cell = stretches(iteration, question)
        return {
            "column": iteration[first],
            "question": question[first],
            "first": first.astype("u4"),
            "samples": np.bincount(cell).astype("u4"),
            "correct": np.bincount(cell, weights=self.flag("correct")).astype("u4"),
            "cause": self._causes(cell) if "advantage" in self.rows else np.zeros(len(first), np.uint8),
        }

    def _causes(self, cell: np.ndarray) -> np.ndarray:
        prompt = stretches(cell, self.rows["rephrasing"], self.rows["template"])[1]
        numbers = (self.rows["advantage"], self.rows["reward"], self.flag("correct"), self.flag("truncated"))
        causes = zero_gradient_causes(
            *map(torch.tensor, (*numbers, cell, prompt)),
            masked=torch.tensor(self.flag("masked")),
            clipped=torch.tensor(self.rows["clipped"]) if "clipped" in self.rows else None,
        )
        return np.asarray(sum((1 + i) * causes[name].numpy() for i, name in enumerate(CAUSES)), dtype=np.uint8)

    @cached_property
    def names(self) -> dict[str, Any]:
        """Column → its distinct values, `references` of each question where they were recorded, and the files."""
        found: dict[str, Any] = {
            name: [None if pd.isna(value) else value for value in values] for name, (_, values) in self.codes.items()
        }
        if "reference" in self.frame:
            first = self.frame.drop_duplicates("question").set_index("question")["reference"]
            found["references"] = [first[question].tolist() for question in found["question"]]
        return {**found, "files": [file.name for file in self.files]}


def stretches(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[C] first row of each stretch of rows that are equal in all columns, and [R] the stretch of each row."""
    change = np.any([np.diff(column.astype(np.int64), prepend=-1) != 0 for column in columns], axis=0)
    return np.flatnonzero(change), np.cumsum(change) - 1
