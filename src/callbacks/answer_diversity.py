"""How varied the responses to one question are, in their answers and their words (Pass@k training, Fig. 7a)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ..metrics import MeanByName
from ..metrics.functional import answer_diversity, answer_entropy, distinct_n, distinct_share, group_index
from ..runs.scalars import log_scalars
from ..types import Fields
from .shared import of_this_batch


class AnswerDiversityMonitor(Callback):
    """Logs means over the questions of each training batch, over all ranks and all responses to a question.

    - `answer_diversity/distinct_wrong`: number of distinct wrong answers. It falls as accuracy rises, because there are
      fewer wrong responses.
    - `answer_diversity/distinct_wrong_share`: the same divided by the number of wrong responses that have an answer,
      over the questions that have any: 1 where no mistake is made twice.
    - `answer_diversity/entropy`: entropy of the distribution of final answers, nats (`answer_entropy`).
    - `answer_diversity/unique_responses`: distinct responses divided by all responses.
    - `answer_diversity/distinct_<n>`: for each n of `ngrams`, distinct n-grams of tokens divided by all n-grams.

    All but the first change with the number of responses per question: compare only runs that have the same.

    Args:
        ngrams: The n of `answer_diversity/distinct_<n>`.

    Reads `batch.rollouts.{question, correct, answers, text, token_ids}`.
    """

    def __init__(self, ngrams: Sequence[int] = (2,)) -> None:
        self.ngrams = tuple(ngrams)
        self.means = MeanByName()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measure and log."""
        values = question_diversity(Fields("batch", batch).rollouts, self.ngrams)
        log_scalars(pl_module, of_this_batch(self.means, values))


def question_diversity(rollouts: Any, ngrams: Sequence[int]) -> dict[str, Tensor]:
    """Name of `AnswerDiversityMonitor` → [Q] float64; NaN where a question has nothing of the kind."""
    index, questions = group_index(rollouts.question)
    distinct_wrong = answer_diversity(rollouts.answers, rollouts.correct, index).double()
    answered = torch.tensor([answer is not None for answer in rollouts.answers], dtype=torch.bool)
    mistakes = torch.bincount(index[answered & ~rollouts.correct], minlength=questions)
    return {
        "answer_diversity/distinct_wrong": distinct_wrong,
        "answer_diversity/distinct_wrong_share": distinct_wrong / mistakes,
        "answer_diversity/entropy": answer_entropy(rollouts.answers, index),
        "answer_diversity/unique_responses": distinct_share(rollouts.text, index),
        **{f"answer_diversity/distinct_{n}": distinct_n(rollouts.token_ids, index, n) for n in ngrams},
    }
