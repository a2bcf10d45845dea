"""How many questions give no gradient, why, and how many of them the rephrasings rescue (TA-GRPO, Fig. 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ..metrics.functional import group_index, uniform_groups, zero_gradient_causes
from ..scalars import log_scalars
from .shared import advantages_of, mean_over_ranks


class ZeroGradientMonitor(Callback):
    """Logs percentages of the questions of each training batch, over all ranks.

    - `zero_gradient/percentage`: all advantages of the question are zero.
    - `zero_gradient/without_gradient`: it contributes nothing to the policy term, for whatever reason; and the reasons,
      which add up to it: `zero_gradient/{all_right,all_wrong,truncated,unpooled,masked,clipped,other}`, see
      `zero_gradient_causes`. `masked` and `clipped` are zero where the training step does not return them.
    - `uniform_reward/original`: the rewards of the G responses to the original question are all equal.
    - `uniform_reward/neighbours`: those of the N·G responses to its rephrasings are.
    - `uniform_reward/pool`: those of all its responses are; `pool_all_correct` and `pool_all_wrong`: and the verdicts
      are all right, or all wrong.
    - `uniform_reward/rescued`: the original's are uniform, the pool's are not.

    Each is a share of the questions that have such responses; `neighbours` is missing where no question was rephrased.
    Uniformity is that of the rewards, shaped terms included, because the gradient vanishes by them: under shaped
    rewards a question may be all correct and still not uniform.

    Reads `batch.rollouts.{question, variant, prompt, rewards, correct, truncated}` ([R] each), `outputs["advantages"]`
    ([R]) and, where they are, `outputs["masked"]` ([R] bool) and `outputs["clipped"]` ([R] share of tokens).
    """

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count and log."""
        percentages = question_percentages(batch.rollouts, outputs)
        log_scalars(pl_module, mean_over_ranks(percentages))


def question_percentages(rollouts: Any, outputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Name of `ZeroGradientMonitor` → [Q] float64: 100 where it holds, 0 where not, NaN without such responses."""
    advantages = advantages_of(outputs)
    index, questions = group_index(rollouts.question)
    original = rollouts.variant == 0

    def every(flags: Tensor) -> Tensor:
        return (torch.bincount(index[~flags], minlength=questions) == 0).double()

    def uniform(members: Tensor) -> Tensor:
        percentages = torch.full((questions,), torch.nan, dtype=torch.float64)
        equal = uniform_groups(rollouts.rewards[members], index[members])
        percentages[index[members].unique()] = 100 * equal.double()
        return percentages

    causes = zero_gradient_causes(
        advantages,
        rollouts.rewards,
        rollouts.correct,
        rollouts.truncated,
        index,
        rollouts.prompt,
        masked=outputs.get("masked"),
        clipped=outputs.get("clipped"),
    )
    first, pool = uniform(original), uniform(torch.ones_like(original))
    return {
        "zero_gradient/percentage": 100 * every(advantages == 0),
        "zero_gradient/without_gradient": 100 * torch.stack(list(causes.values())).any(0).double(),
        **{f"zero_gradient/{cause}": 100 * flags.double() for cause, flags in causes.items()},
        "uniform_reward/original": first,
        "uniform_reward/neighbours": uniform(~original),
        "uniform_reward/pool": pool,
        "uniform_reward/pool_all_correct": pool * every(rollouts.correct),
        "uniform_reward/pool_all_wrong": pool * every(~rollouts.correct),
        # A uniform pool has a uniform original, so that the difference is 100 or 0.
        "uniform_reward/rescued": first - pool,
    }
