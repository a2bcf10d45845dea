"""How varied the responses to one question are (Pass@k training, Fig. 7a)."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Trainer

from ..metrics.functional import answer_diversity, answer_entropy, group_index
from .shared import BatchDiagnostic, batch_means


class AnswerDiversityMonitor(BatchDiagnostic):
    """Logs means over the questions of each training batch, over all ranks and all responses to a question.

    - `answer_diversity/distinct_wrong`: number of distinct wrong answers. It falls as accuracy rises, because there are
      fewer wrong responses.
    - `answer_diversity/distinct_wrong_share`: that number divided by the number of wrong responses with an answer,
      over the questions that have such responses: 1 where no two wrong answers are equal.
    - `answer_diversity/entropy`: entropy of the distribution of final answers, nats (`answer_entropy`).

    All of them depend on the number of responses per question: compare only runs in which it is the same.
    """

    def measure(self, trainer: Trainer, batch: Any, outputs: Any) -> dict[str, float]:
        rollouts = batch.rollouts
        index, questions = group_index(rollouts.question)
        distinct_wrong = answer_diversity(rollouts.answers, rollouts.correct, index).double()
        answered = torch.tensor([answer is not None for answer in rollouts.answers], dtype=torch.bool)
        mistakes = torch.bincount(index[answered & ~rollouts.correct], minlength=questions)
        values = {
            "distinct_wrong": distinct_wrong,
            "distinct_wrong_share": distinct_wrong / mistakes,
            "entropy": answer_entropy(rollouts.answers, index),
        }
        return batch_means({f"answer_diversity/{name}": column for name, column in values.items()})
