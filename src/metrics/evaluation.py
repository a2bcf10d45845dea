"""What an evaluation counts of each question, over batches and ranks, and the report made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..types import Fields
from .base import RecordMetric
from .functional import bootstrap_intervals, pass_at_k_curve
from .functional.answers import majority_probability

Record = dict[str, Any]
"""JSON of one question of one batch: `split`, `id`, and the fields of `QuestionCounts` as `counts`."""


@dataclass
class QuestionCounts:
    """What the responses to one evaluation question add up to."""

    metadata: dict[str, Any]
    """The question's own, kept for analysis."""
    n: int = 0
    """Responses."""
    correct: int = 0
    """Correct ones."""
    right: set[str] = field(default_factory=set)
    """Answers of the correct ones."""
    wrong: Counter[str] = field(default_factory=Counter)
    """Wrong answer → responses that gave it; wrong responses without an answer are not in it."""
    tokens: int = 0
    """Response tokens."""
    truncated: int = 0
    """Responses that the length limit ended."""

    def add(self, rollouts: Any, rows: Iterable[int]) -> None:
        """Count rows of the rollouts."""
        for row in rows:
            correct, answer = bool(rollouts.correct[row]), rollouts.answers[row]
            self.n += 1
            self.correct += correct
            self.tokens += len(rollouts.token_ids[row])
            self.truncated += bool(rollouts.truncated[row])
            if answer is not None:
                self.right.update([answer] if correct else [])
                self.wrong.update([] if correct else [answer])

    def merge(self, other: QuestionCounts) -> None:
        """Add what another batch or rank counted for the same question."""
        self.n += other.n
        self.correct += other.correct
        self.right |= other.right
        self.wrong += other.wrong
        self.tokens += other.tokens
        self.truncated += other.truncated

    def majority_at_k(self, k: int) -> float:
        """Probability that the majority of k of the responses is right; see `maj_at_k`."""
        silent = self.n - self.correct - self.wrong.total()
        return majority_probability(self.correct, tuple(sorted(self.wrong.values())), silent, k)

    def row(self, id: str) -> dict[str, Any]:
        """The question in the report."""
        return {
            "id": id,
            "n": self.n,
            "correct": self.correct,
            "distinct_answers": len(self.right | set(self.wrong)),
            "distinct_wrong": len(self.wrong),
            "majority": self.majority_at_k(self.n),
            "mean_length": self.tokens / self.n,
            "truncated": self.truncated,
            "metadata": self.metadata,
        }


Splits = dict[str, dict[str, QuestionCounts]]
"""Split → question id → counts."""


class EvaluationCounts(RecordMetric):
    """Adds up counts by split and question; a question that comes again adds its responses."""

    def update(self, records: Iterable[Record]) -> None:
        """Add records, those of `count_batch` or others that were kept."""
        self.add(*records)

    def compute(self) -> Splits:
        """The counts of every question."""
        return merge_counts(self.records())


def count_batch(batch: Any) -> list[Record]:
    """Records of the questions of one batch that have any response.

    Args:
        batch: An object or a mapping with `split`, `groups[…].id`, `groups[…].metadata` where there is such a thing,
            and `rollouts.{question, correct, answers, token_ids, truncated}`.
    """
    records = []
    batch = Fields("batch", batch)
    for i, group in enumerate(batch.groups):
        rows = (batch.rollouts.question == i).nonzero()[:, 0].tolist()
        if rows:
            counts = QuestionCounts(dict(getattr(group, "metadata", {})))
            counts.add(batch.rollouts, rows)
            content = {**asdict(counts), "right": sorted(counts.right), "wrong": dict(counts.wrong)}
            records.append({"split": batch.split, "id": group.id, "counts": content})
    return records


def merge_counts(records: Iterable[Record]) -> Splits:
    """What the records of all batches and ranks add up to."""
    splits: Splits = {}
    for record in records:
        content = record["counts"]
        counts = QuestionCounts(**{**content, "right": set(content["right"]), "wrong": Counter(content["wrong"])})
        split = splits.setdefault(record["split"], {})
        split.setdefault(record["id"], QuestionCounts(counts.metadata)).merge(counts)
    return splits


def summarise(questions: Mapping[str, QuestionCounts], ks: Sequence[int]) -> dict[str, Any]:
    """Pass@k and majority@k with intervals, means over questions, and a row for each question.

    Args:
        questions: Question id → its counts; at least one.
        ks: The k of interest; those above the smallest n are left out.
    """
    # In order of the ids, so that the bootstrap does not depend on which rank had which question.
    ids = sorted(questions)
    counts = [questions[id] for id in ids]
    samples = torch.tensor([question.n for question in counts])
    ks = [k for k in ks if k <= int(samples.min())]
    passed = pass_at_k_curve(samples, torch.tensor([question.correct for question in counts]), ks)
    majority = torch.tensor([[question.majority_at_k(k) for k in ks] for question in counts], dtype=torch.float64)

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    def intervals(curve: Tensor) -> dict[int, dict[str, float]]:
        return {k: interval._asdict() for k, interval in zip(ks, bootstrap_intervals(curve), strict=True)}

    rows = [question.row(id) for id, question in zip(ids, counts, strict=True)]
    return {
        "num_questions": len(rows),
        "samples": int(samples.sum()),
        "pass_at_k": intervals(passed),
        "majority_at_k": intervals(majority),
        "majority": mean([row["majority"] for row in rows]),
        "wrong_answers": mean([row["distinct_wrong"] for row in rows]),
        "length": mean([row["mean_length"] for row in rows]),
        "truncated": mean([row["truncated"] / row["n"] for row in rows]),
        "questions": rows,
    }


def averages(report: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """Pass@k over several splits: `splits` → k → the mean of the splits, `questions` → k → the mean of all questions.

    The two differ where splits differ in size. Only the k that all splits have.

    Args:
        report: Split → what `summarise` returns; at least one.

    >>> report = {"a": {"num_questions": 3, "pass_at_k": {1: {"value": 0.0}}},
    ...           "b": {"num_questions": 1, "pass_at_k": {1: {"value": 1.0}}}}
    >>> averages(report)
    {'splits': {1: 0.5}, 'questions': {1: 0.25}}
    """
    splits = list(report.values())
    total = sum(split["num_questions"] for split in splits)
    values = {
        k: [split["pass_at_k"][k]["value"] for split in splits]
        for k in splits[0]["pass_at_k"]
        if all(k in split["pass_at_k"] for split in splits)
    }
    weights = [split["num_questions"] / total for split in splits]
    return {
        "splits": {k: sum(of_splits) / len(splits) for k, of_splits in values.items()},
        "questions": {
            k: sum(w * value for w, value in zip(weights, of_splits, strict=True)) for k, of_splits in values.items()
        },
    }
