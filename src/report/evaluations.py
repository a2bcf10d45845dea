"""The evaluations of a run as blocks: every split's questions over the iterations at which they were evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..analysis.runs import RunFiles
from .blocks import block

COUNTS = {"samples": "n", "correct": "correct", "distinct_wrong": "distinct_wrong"}


def evaluations_of(run: RunFiles) -> list[Mapping[str, Any]]:
    """All evaluations that a run kept, by iteration; of a run that kept none, that in its `test.json`."""
    paths = [p for p in sorted((run.path / "evaluations").glob("*-*.json")) if not p.name.startswith("exact-")]
    found = [run.json(str(path.relative_to(run.path))) for path in paths or sorted(run.path.glob("test.json"))]
    return sorted(found, key=lambda evaluation: (evaluation.get("iteration", 0), evaluation.get("stage") == "test"))


def evaluation_blocks(run: RunFiles, prefix: str) -> tuple[list[str], list[str]]:
    """One block per split, and the names of the splits.

    A block has the cells of a heat map: `column` (which evaluation), `question`, `samples`, `correct`,
    `distinct_wrong`; `questions` (ids), `columns` (iteration and stage), and `pass_at_k` of each evaluation.
    """
    evaluations = evaluations_of(run)
    splits = list(dict.fromkeys(name for evaluation in evaluations for name in evaluation["splits"]))
    return [
        block(f"{prefix}/evaluation/{i}", _split_columns(evaluations, name)) for i, name in enumerate(splits)
    ], splits


def _split_columns(evaluations: list[Mapping[str, Any]], split: str) -> dict[str, Any]:
    having = [evaluation for evaluation in evaluations if split in evaluation["splits"]]
    numbers: dict[str, int] = {}
    cells: dict[str, list[int]] = {name: [] for name in ("column", "question", *COUNTS)}
    for column, evaluation in enumerate(having):
        for row in evaluation["splits"][split]["questions"]:
            cells["column"].append(column)
            cells["question"].append(numbers.setdefault(str(row["id"]), len(numbers)))
            for name, key in COUNTS.items():
                cells[name].append(int(row.get(key, 0)))
    return {
        **{name: np.array(values, dtype="u4") for name, values in cells.items()},
        "questions": list(numbers),
        "columns": [[int(e.get("iteration", 0)), str(e.get("stage", "test"))] for e in having],
        "pass_at_k": [e["splits"][split].get("pass_at_k", {}) for e in having],
    }
