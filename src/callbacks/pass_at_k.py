"""Pass@k, majority vote and answer diversity of each evaluation split, with intervals over questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ..metrics.functional import bootstrap_intervals, pass_at_k_curve
from ..metrics.functional.answers import majority_probability
from ..modules.distributed import gather_objects
from .shared import current_iteration, write_json


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


class PassAtKEvaluator(Callback):
    """Counts correct responses per question in validation and test, and reports at the end of the stage.

    Logs for each split, as means over its questions,
    - `pass@k/<split>/<k>`, unbiased; at k = 1 it is the accuracy;
    - `majority@k/<split>/<k>`, exact (`maj_at_k`), and `majority/<split>` of all samples;
    - `wrong_answers/<split>`, distinct wrong answers; `length/<split>`, tokens; `truncated/<split>`, a share.

    Writes `<stage>.json` (`validation`, `test`) into the run directory, and the same to
    `evaluations/<stage>-<iterations trained>.json`, which the next evaluation does not replace: the counts of every
    question, and pass@k and majority@k with 95 % intervals by bootstrap over questions.

    Counts are added exactly over batches and ranks; a question id that comes again adds its samples, and
    questions without any response are left out.

    Reads `batch.split`, `batch.groups[…].{id, metadata}` and `batch.rollouts.{question, correct, answers, token_ids,
    truncated}`.

    Args:
        ks: The k of interest; those above the smallest number of samples are left out.

    Raises:
        ValueError: a k is less than 1, or none is given.
    """

    def __init__(self, ks: Sequence[int] = (1, 2, 4, 8, 16, 32)) -> None:
        if not ks or min(ks) < 1:
            raise ValueError(f"Expected ks to hold integers of at least 1, but got {list(ks)}.")
        self.ks = tuple(ks)
        self._tallies: Tallies = {}

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start counting."""
        self._tallies = {}

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count a batch."""
        self._count(batch)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report."""
        if not trainer.sanity_checking:
            self._report(trainer, pl_module, "validation")

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start counting."""
        self._tallies = {}

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count a batch."""
        self._count(batch)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report."""
        self._report(trainer, pl_module, "test")

    def _count(self, batch: Any) -> None:
        split = self._tallies.setdefault(batch.split, {})
        rows = batch.rollouts.question.tolist()
        for i, group in enumerate(batch.groups):
            mine = [row for row, question in enumerate(rows) if question == i]
            if mine:
                tally = split.setdefault(group.id, QuestionTally(dict(getattr(group, "metadata", {}))))
                tally.add(batch.rollouts, mine)

    def _report(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        splits = merge_tallies(gather_objects(self._tallies))
        report = {name: summarise(questions, self.ks) for name, questions in splits.items() if questions}
        for name, summary in report.items():
            metrics = {f"pass@k/{name}/{k}": x["value"] for k, x in summary["pass_at_k"].items()}
            metrics |= {f"majority@k/{name}/{k}": x["value"] for k, x in summary["majority_at_k"].items()}
            scalars = ("majority", "wrong_answers", "length", "truncated")
            metrics |= {f"{scalar}/{name}": summary[scalar] for scalar in scalars}
            pl_module.log_dict(metrics, rank_zero_only=True)
        if trainer.is_global_zero:
            iteration = current_iteration(trainer) + 1
            content = {"stage": stage, "iteration": iteration, "global_step": trainer.global_step, "splits": report}
            folder = Path(trainer.default_root_dir)
            write_json(folder / "evaluations" / f"{stage}-{iteration:06d}.json", content)
            write_json(folder / f"{stage}.json", content)


def merge_tallies(parts: Iterable[Tallies]) -> Tallies:
    """Those of all ranks in one."""
    merged: Tallies = {}
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
