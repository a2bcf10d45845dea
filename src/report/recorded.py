"""The records of `RolloutRecorder` as columns of a page: a row is a response, a cell a question's visit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from ..analysis.rollouts import COLUMNS, rollout_files
from ..metrics.functional import CAUSES, zero_gradient_causes

MEANS = ("entropy", "ratio", "kl", "clipped", "logprob", "score_logprob")
"""Numbers of a response that are shown where they were recorded, beside reward, advantage and reward terms."""
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
    table: pa.Table
    """All their columns but those of tokens, one row per response, and `file` and `line`, where the row stands."""

    @classmethod
    def read(cls, run: Path) -> Recorded | None:
        """The rollouts of a run directory; None where it has none.

        Raises:
            ValueError: see `rollout_files`.
        """
        files: list[Path] = []
        tables = []
        for file, names in rollout_files(run, (*COLUMNS, "response")):
            table = pq.read_table(file, columns=[name for name in names if name not in TOKENS])
            place = {"file": np.full(len(table), len(files)), "line": np.arange(len(table))}
            for name, values in place.items():
                table = table.append_column(name, pa.array(values))
            files.append(file)
            tables.append(table)
        if not files:
            return None
        table = pa.concat_tables(tables, promote_options="default")
        keys = {name: _codes(table, name)[0] for name in ("iteration", "question", "rephrasing", "template")}
        iteration = table["iteration"].to_numpy()
        order = np.lexsort((keys["template"], table["rephrasing"].to_numpy(), keys["question"], iteration))
        return cls(files, table.take(order))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def numbers(self, name: str, kind: str) -> np.ndarray:
        """[R] a column of numbers; NaN or 0 where nothing was recorded."""
        if name not in self.table.column_names:
            return np.zeros(len(self), kind)
        column = self.table[name]
        plain = column.cast(pa.uint8()) if pa.types.is_boolean(column.type) else column
        empty = np.nan if kind.startswith("f") else 0
        return np.asarray(pc.fill_null(plain, pa.scalar(empty, plain.type)).to_numpy(), dtype=kind)

    @cached_property
    def codes(self) -> dict[str, tuple[np.ndarray, list[Any]]]:
        """Column of strings → [R] u4 index of each row's value, and the distinct values in order of appearance."""
        names = ("question", "prompt", "template", "answer")
        return {name: _codes(self.table, name) for name in names if name in self.table.column_names}

    @cached_property
    def rows(self) -> dict[str, np.ndarray]:
        """Column → [R] number of each response, to be shown and to find it again."""
        names = self.table.column_names
        flags = np.zeros(len(self), np.uint8)
        for bit, name in enumerate(FLAGS):
            flags |= self.numbers(name, "u1") << bit
        return {
            "iteration": self.numbers("iteration", "i4"),
            "rephrasing": self.numbers("rephrasing", "u2"),
            **{name: codes for name, (codes, _) in self.codes.items()},
            "file": self.numbers("file", "u4"),
            "line": self.numbers("line", "u4"),
            "flags": flags,
            "length": self.numbers("length", "u4"),
            **{
                name: self.numbers(name, "f4")
                for name in ("reward", "advantage", *MEANS, *(n for n in names if n.startswith("reward_term/")))
                if name in names
            },
        }

    @cached_property
    def cells(self) -> dict[str, np.ndarray]:
        """Column → [C] number of each question of an iteration, in the order of the rows.

        `column` (iteration), `question`, `first` (its first row), `samples`, `correct`, `cause` (in `CELL_CAUSES`).
        """
        iteration, question = self.rows["iteration"], self.rows["question"]
        first, cell = stretches(iteration, question)
        correct = self.numbers("correct", "u1")
        return {
            "column": iteration[first],
            "question": question[first],
            "first": first.astype("u4"),
            "samples": np.bincount(cell).astype("u4"),
            "correct": np.bincount(cell, weights=correct).astype("u4"),
            "cause": self._causes(cell),
        }

    def _causes(self, cell: np.ndarray) -> np.ndarray:
        if "advantage" not in self.rows:
            return np.zeros(int(cell[-1]) + 1 if len(cell) else 0, np.uint8)
        prompt = pd.DataFrame({"cell": cell, "r": self.rows["rephrasing"], "t": self.rows["template"]})
        flags = {name: torch.tensor(self.numbers(name, "u1") > 0) for name in FLAGS}
        causes = zero_gradient_causes(
            torch.tensor(self.rows["advantage"]),
            torch.tensor(self.rows["reward"]),
            flags["correct"],
            flags["truncated"],
            torch.tensor(cell),
            torch.tensor(prompt.groupby(["cell", "r", "t"], sort=False).ngroup().to_numpy()),
            masked=flags["masked"],
            clipped=torch.tensor(self.rows["clipped"]) if "clipped" in self.rows else None,
        )
        numbered = [(1 + i) * causes[name].to(torch.uint8) for i, name in enumerate(CAUSES)]
        return torch.stack(numbered).sum(0).to(torch.uint8).numpy()

    @cached_property
    def names(self) -> dict[str, Any]:
        """Column → its distinct values, `references` of each question where they were recorded, and the files."""
        found: dict[str, Any] = {name: values for name, (_, values) in self.codes.items()}
        if "reference" in self.table.column_names:
            seen: Mapping[str, list[str]] = dict(
                zip(self.table["question"].to_pylist(), self.table["reference"].to_pylist(), strict=True)
            )
            found["references"] = [seen[question] for question in found["question"]]
        return {**found, "files": [file.name for file in self.files]}


def stretches(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[C] first row of each stretch of rows that are equal in all columns, and [R] the stretch of each row."""
    change = np.any([np.diff(column.astype(np.int64), prepend=-1) != 0 for column in columns], axis=0)
    return np.flatnonzero(change), np.cumsum(change) - 1


def _codes(table: pa.Table, name: str) -> tuple[np.ndarray, list[Any]]:
    encoded = table[name].combine_chunks().dictionary_encode("encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    return encoded.indices.to_numpy(zero_copy_only=False).astype("u4"), encoded.dictionary.to_pylist()
