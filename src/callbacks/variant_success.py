"""Whether rephrasings and templates differ in difficulty (TA-GRPO, §5.2)."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ..metrics.functional import difficulty_variance
from .shared import mean_over_ranks


class VariantSuccessMonitor(Callback):
    """Logs means over the responses of each training batch, over all ranks, by what they were sampled from.

    - `variant/<n>/{correct,length,truncated}` and `variant/<n>/reward_term/<name>` (a format reward, say): responses to
      the original question (n = 0), or to the n-th rephrasings;
    - `template/<name>/…`: the same by template;
    - `variant/difficulty_variance`: variance of the true success rate over the prompts of one question, without bias
      (`difficulty_variance`), mean over the questions that allow it. Zero, up to noise of either sign, where rephrasing
      does not change how difficult a question is; missing where no question allows it.

    Reads `batch.rollouts.{prompts[…].template, prompt, question, variant, correct, truncated, lengths, reward_terms}`.
    """

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measure and log."""
        pl_module.log_dict(mean_over_ranks(values_by_prompt(batch.rollouts)))


def values_by_prompt(rollouts: Any) -> dict[str, Tensor]:
    """Name of `VariantSuccessMonitor` → values of the responses (or questions) that it is the mean of."""
    columns = {
        "correct": rollouts.correct.double(),
        "length": rollouts.lengths.double(),
        "truncated": rollouts.truncated.double(),
        **{f"reward_term/{name}": term for name, term in rollouts.reward_terms.items()},
    }
    members = {f"variant/{n}": rollouts.variant == n for n in rollouts.variant.unique().tolist()}
    templates = [rollouts.prompts[row].template for row in rollouts.prompt.tolist()]
    for template in sorted(set(templates)):
        members[f"template/{template}"] = torch.tensor([name == template for name in templates])
    values = {f"{kind}/{name}": column[rows] for kind, rows in members.items() for name, column in columns.items()}
    variance = difficulty_variance(rollouts.correct, rollouts.prompt, rollouts.question)
    return values | {"variant/difficulty_variance": variance}
