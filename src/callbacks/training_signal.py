"""Learning signal in the originals and the rephrasings of training questions (TA-GRPO, Figs. 3 and 4)."""

from collections.abc import Callable
from math import isnan
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from ..distributed import gather_objects, rank
from ..metrics.functional import group_index
from ..types import Fields
from .diversity import EmbeddingDiversityMonitor
from .shared import keep_questions
from .zero_gradient import uniform_percentages

Row = dict[str, Any]  # the `id` of a question, and metric → its value for the question


class TrainingSignal(Callback):
    """Callback that measures, for each question of a test, whether its responses give a training signal.

    The responses to the original, the responses to the rephrasings, and the pool of both are measured.
    Nothing is logged; the attribute `questions` gets a row per question. A row has `uniform_reward/…` as in
    `ZeroGradientMonitor`, but computed from verdicts alone, because a test has no shaped terms. A row also
    has `embedding_distance/…`, as in `EmbeddingDiversityMonitor`, and `correct/{original,rephrasings}`, the
    percentage of correct responses. Missing values are left out.

    Args:
        diversity: Monitor that embeds the responses; None measures no distances.
        known: Function that returns the rows of an earlier measurement of the same weights, if any. It is
            called after the weights are loaded. If it returns rows, nothing is sampled.
    """

    shapes_learning = False

    def __init__(self, diversity: EmbeddingDiversityMonitor | None, known: Callable[[], list[Row]]) -> None:
        self.diversity = diversity
        self.known = known
        self.questions: list[Row] = []
        self._measured = False

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.questions = self.known() if rank() == 0 else []
        self._measured = gather_objects(bool(self.questions))[0]

    def on_test_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, *_: Any) -> None:
        if self._measured:
            keep_questions(batch, [False] * len(Fields("batch", batch).groups))

    def on_test_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, *_: Any) -> None:
        """Measure the questions of a batch."""
        if self._measured:
            return
        batch = Fields("batch", batch)
        rollouts = batch.rollouts
        columns = uniform_percentages(rollouts)
        index, questions = group_index(rollouts.question)
        for pool, members in {
            "original": rollouts.rephrasing == 0,
            "rephrasings": rollouts.rephrasing > 0,
        }.items():
            correct = torch.bincount(
                index[members], 100 * rollouts.correct[members].double(), minlength=questions
            )
            columns[f"correct/{pool}"] = correct / torch.bincount(index[members], minlength=questions)
        rows: dict[str, Row] = {}
        for place, question in enumerate(rollouts.question.unique().tolist()):
            id, values = (
                batch.groups[question].id,
                {name: float(column[place]) for name, column in columns.items()},
            )
            rows[id] = {"id": id, **{name: value for name, value in values.items() if not isnan(value)}}
        for row in self.diversity.distances(batch, 0) if self.diversity is not None else ():
            rows[row["question"]][f"embedding_distance/{row['pool']}"] = row["distance"]
        self.questions += rows.values()

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gather the rows of all ranks, ordered by id."""
        rows = (row for part in gather_objects(self.questions) for row in part)
        self.questions = sorted(rows, key=lambda row: str(row["id"]))
