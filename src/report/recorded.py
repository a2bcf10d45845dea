"""The records of `RolloutRecorder` as columns of a page: a row is a response, a cell a question in one iteration."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ..analysis.rollouts import read_rollouts
from ..metrics.functional import CAUSES, zero_gradient_causes

STRINGS = ("question", "prompt", "template", "answer", "file")
FLAGS = ("correct", "truncated", "masked")


class Recorded:
    """The responses of a run in the order of iterations, questions and prompts; errors are those of `read_rollouts`."""

    def __init__(self, run: Path) -> None:
        frame = read_rollouts(run)
        question, template = (pd.factorize(frame[name])[0] for name in ("question", "template"))
        order = np.lexsort((template, frame["rephrasing"], question, frame["iteration"]))
        self.frame = frame.iloc[order].reset_index(drop=True)
        self._codes = {name: pd.factorize(self.frame[name], use_na_sentinel=False) for name in STRINGS}

    @cached_property
    def rows(self) -> dict[str, np.ndarray]:
        """Column → [R]: the numbers and flags of each response; a string stands as its index in `names`."""
        frame, flags = self.frame, self.frame.reindex(columns=FLAGS)
        return {
            **{str(name): frame[name].to_numpy() for name in frame.select_dtypes("integer")},
            **{str(name): frame[name].to_numpy("f4") for name in frame.select_dtypes("floating")},
            **{name: codes for name, (codes, _) in self._codes.items()},
            **{name: flags[name].eq(True).to_numpy() for name in FLAGS},
        }

    @cached_property
    def cells(self) -> dict[str, Any]:
        """Column → [C]: each question of an iteration, in the order of the rows.

        `column` (iteration), `question`, `first` (its first row), `samples`, `correct`, and `cause`: `gradient`, or why
        it has none (`zero_gradient_causes`).
        """
        first, cell = stretches(self.rows["iteration"], self.rows["question"])
        return {
            "column": self.rows["iteration"][first],
            "question": self.rows["question"][first],
            "first": first,
            "samples": np.bincount(cell),
            "correct": np.bincount(cell[self.rows["correct"]], minlength=len(first)),
            "cause": self._causes(cell),
        }

    def _causes(self, cell: np.ndarray) -> list[str]:
        prompt = stretches(cell, self.rows["rephrasing"], self.rows["template"])[1]
        numbers = [self.rows[name] for name in ("advantage", "reward", "correct", "truncated")]
        causes = zero_gradient_causes(
            *map(torch.tensor, (*numbers, cell, prompt)),
            masked=torch.tensor(self.rows["masked"]),
            clipped=torch.tensor(self.rows["clipped"]) if "clipped" in self.rows else None,
        )
        return [str(cause) for cause in np.select([causes[name].numpy() for name in CAUSES], CAUSES, "gradient")]

    @cached_property
    def names(self) -> dict[str, list[Any]]:
        """Column of strings → its distinct values; `references` of each question where they were recorded."""
        found = {name: [None if pd.isna(x) else x for x in values] for name, (_, values) in self._codes.items()}
        if "reference" in self.frame:
            first = self.frame.drop_duplicates("question").set_index("question")["reference"]
            found["references"] = [first[question].tolist() for question in found["question"]]
        return found


def stretches(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[C] first row of each stretch of rows that are equal in all columns, and [R] the stretch of each row."""
    change = np.any([np.diff(column, prepend=-1) != 0 for column in columns], axis=0)
    return np.flatnonzero(change), np.cumsum(change) - 1
