"""What evaluation counts of each question: added up over batches and ranks, kept on disk, summarised."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..metrics.functional import bootstrap_intervals, pass_at_k_curve
from ..metrics.functional.answers import majority_probability
from .shared import write_json


@dataclass
class QuestionTally:
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
    """Wrong answer → responses with it. Wrong responses without an answer are in none."""
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

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "right": sorted(self.right), "wrong": dict(self.wrong)}

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> QuestionTally:
        """From `as_dict`."""
        return cls(**{**content, "right": set(content["right"]), "wrong": Counter(content["wrong"])})

    def merge(self, other: QuestionTally) -> None:
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


Tallies = dict[str, dict[str, QuestionTally]]  # split → question id → tally


class TallyStore:
    """Tallies in a folder, one line of JSON per question, so that an evaluation that broke off goes on.

    Each rank appends to a file of its own; all ranks read all files, so that their number may change in between. A line
    that was cut off when the process died is passed over.

    Args:
        folder: Where `settings.json` and `<rank>.jsonl` lie.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def check(self, settings: Mapping[str, Any]) -> None:
        """Note what the counts are of, or refuse to add to counts of something else.

        Raises:
            ValueError: the folder holds counts that were made with other settings.
        """
        path = self.folder / "settings.json"
        if not path.exists():
            write_json(path, dict(settings))
            return
        then = json.loads(path.read_text())
        if odd := sorted(name for name in {*then, *settings} if then.get(name) != settings.get(name)):
            raise ValueError(
                f"Expected the counts in {self.folder} to be of the same evaluation, but "
                + ", ".join(f"{name} was {then.get(name)!r} and is {settings.get(name)!r}" for name in odd)
                + ". Give this evaluation a name of its own (name=…), or delete that folder."
            )

    def read(self) -> Tallies:
        """Everything that was counted so far."""
        tallies: Tallies = {}
        for file in sorted(self.folder.glob("*.jsonl")):
            for line in file.read_text().splitlines():
                try:
                    row = json.loads(line)
                except json.JSONDecodeError:  # the process died while it wrote this line
                    continue
                tally = QuestionTally.of(row["tally"])
                split = tallies.setdefault(row["split"], {})
                split.setdefault(row["id"], QuestionTally(tally.metadata)).merge(tally)
        return tallies

    def append(self, rank: int, split: str, questions: Mapping[str, QuestionTally]) -> None:
        """Add the tallies of one batch, at once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        rows = [{"split": split, "id": id, "tally": tally.as_dict()} for id, tally in questions.items()]
        path = self.folder / f"{rank}.jsonl"
        # What a dying process left of a line must not swallow the next one.
        torn = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
        with path.open("a") as file:
            file.write("\n" * bool(torn) + "".join(json.dumps(row) + "\n" for row in rows))


def merge_tallies(parts: Iterable[Tallies], into: Tallies | None = None) -> Tallies:
    """Those of all batches or ranks in one; added to `into` where it is given."""
    merged: Tallies = {} if into is None else into
    for part in parts:
        for name, questions in part.items():
            split = merged.setdefault(name, {})
            for id, tally in questions.items():
                split.setdefault(id, QuestionTally(tally.metadata)).merge(tally)
    return merged


def summarise(questions: dict[str, QuestionTally], ks: Sequence[int]) -> dict[str, Any]:
    """Pass@k and majority@k with intervals, means over questions, and a row for each question.

    Args:
        questions: Question id → its tally; at least one.
        ks: The k of interest; those above the smallest n are left out.
    """
    # In order of the ids, so that the bootstrap does not depend on which rank had which question.
    ids = sorted(questions)
    tallies = [questions[id] for id in ids]
    samples = torch.tensor([tally.n for tally in tallies])
    ks = [k for k in ks if k <= int(samples.min())]
    passed = pass_at_k_curve(samples, torch.tensor([tally.correct for tally in tallies]), ks)
    majority = torch.tensor([[tally.majority_at_k(k) for k in ks] for tally in tallies], dtype=torch.float64)

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    def intervals(curve: Tensor) -> dict[int, dict[str, float]]:
        return {k: interval._asdict() for k, interval in zip(ks, bootstrap_intervals(curve), strict=True)}

    rows = [tally.row(id) for id, tally in zip(ids, tallies, strict=True)]
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
