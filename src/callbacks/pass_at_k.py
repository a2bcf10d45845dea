"""Pass@k, majority vote and answer diversity of each evaluation split, with intervals over questions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from ..metrics.functional import bootstrap_interval, pass_at_k_curve
from ..modules.distributed import gather_objects


class PassAtKEvaluator(Callback):
    """Counts correct responses per question in validation and test, and reports at the end of the stage.

    Logs `pass@k/<split>/<k>`, `majority/<split>` (share of questions whose most frequent answer is correct) and
    `wrong_answers/<split>` (distinct wrong answers per question). Writes `<stage>.json` into the run directory:
    the counts of every question and pass@k with its 95 % interval by bootstrap over questions.

    Reads `batch.split`, `batch.groups[…].{id, metadata}` and `batch.rollouts.{question, correct, answers, lengths,
    truncated}`.

    Args:
        ks: The k of interest; those above the number of samples are left out.
    """

    def __init__(self, ks: Sequence[int] = (1, 2, 4, 8, 16, 32)) -> None:
        self.ks = tuple(ks)
        self._questions: dict[str, dict[str, Any]] = {}

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start counting."""
        self._questions = {}

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
        self._questions = {}

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
        rollouts = batch.rollouts
        split = self._questions.setdefault(batch.split, {})
        for row, group in enumerate(batch.groups):
            mine = (rollouts.question == row).nonzero()[:, 0].tolist()
            answers = Counter(rollouts.answers[r] for r in mine if rollouts.answers[r] is not None)
            right = {rollouts.answers[r] for r in mine if rollouts.correct[r]}
            split[group.id] = {
                "n": len(mine),
                "correct": int(rollouts.correct[mine].sum()),
                "distinct_answers": len(answers),
                "distinct_wrong": len(set(answers) - right),
                "majority_correct": bool(answers) and answers.most_common(1)[0][0] in right,
                "mean_length": float(rollouts.lengths[mine].float().mean()),
                "truncated": int(rollouts.truncated[mine].sum()),
                "metadata": dict(group.metadata),
            }

    def _report(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        splits: dict[str, dict[str, Any]] = {}
        for part in gather_objects(self._questions):
            for name, questions in part.items():
                splits.setdefault(name, {}).update(questions)
        report = {name: summarise(questions, self.ks) for name, questions in splits.items()}
        for name, summary in report.items():
            metrics = {f"pass@k/{name}/{k}": interval["value"] for k, interval in summary["pass_at_k"].items()}
            metrics |= {
                f"majority/{name}": summary["majority"],
                f"wrong_answers/{name}": summary["wrong_answers"],
            }
            pl_module.log_dict(metrics, rank_zero_only=True)
        if trainer.is_global_zero:
            path = Path(trainer.default_root_dir) / f"{stage}.json"
            write_json(path, {"stage": stage, "global_step": trainer.global_step, "splits": report})


def summarise(questions: dict[str, dict[str, Any]], ks: Sequence[int]) -> dict[str, Any]:
    """Pass@k with intervals, and means over questions, from the counts of each question.

    Args:
        questions: Question id → its counts, `n` samples and `correct` ones among them.
        ks: The k of interest; those above the smallest n are left out.
    """
    # In order of the ids, so that the bootstrap does not depend on which rank had which question.
    rows = [{"id": id, **questions[id]} for id in sorted(questions)]
    samples = torch.tensor([row["n"] for row in rows])
    correct = torch.tensor([row["correct"] for row in rows])
    ks = [k for k in ks if k <= int(samples.min())]
    curve = pass_at_k_curve(samples, correct, ks)
    return {
        "num_questions": len(rows),
        "pass_at_k": {k: bootstrap_interval(curve[:, i])._asdict() for i, k in enumerate(ks)},
        "majority": sum(row["majority_correct"] for row in rows) / len(rows),
        "wrong_answers": sum(row["distinct_wrong"] for row in rows) / len(rows),
        "questions": rows,
    }


def write_json(path: Path, content: Any) -> None:
    """Write `content` to `path` at once: a reader sees the old file or the new one."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(path)
