"""How many questions give no gradient, and how many of them the rephrasings rescue (TA-GRPO, Fig. 3)."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ..metrics.functional import uniform_groups
from ..modules.distributed import sum_over_ranks


class ZeroGradientMonitor(Callback):
    """Logs percentages of the questions of each training batch, over all ranks.

    - `zero_gradient/percentage`: all advantages of the question are zero.
    - `uniform_reward/original`: the rewards of the G responses to the original question are all equal.
    - `uniform_reward/neighbours`: those of the N·G responses to its rephrasings are; questions without any don't count.
    - `uniform_reward/pool`: those of all its responses are; `pool_all_correct` and `pool_all_wrong` say which way.
    - `uniform_reward/rescued`: the original's are uniform, the pool's are not.

    Reads `batch.rollouts.{question, variant, rewards, correct}` ([R] each) and `outputs["advantages"]` ([R]).
    """

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count and log."""
        totals = sum_over_ranks(group_counts(batch.rollouts, outputs["advantages"]))
        questions, with_neighbours = totals.pop("questions"), totals.pop("with_neighbours")
        metrics = {name: 100 * count / questions for name, count in totals.items()}
        neighbours = metrics.pop("uniform_reward/neighbours") * questions
        if with_neighbours:
            metrics["uniform_reward/neighbours"] = neighbours / with_neighbours
        pl_module.log_dict(metrics)


def group_counts(rollouts: Any, advantages: Tensor) -> dict[str, float]:
    """Numbers of questions by what their rewards and advantages look like; names as in `ZeroGradientMonitor`."""
    question, rewards = rollouts.question, rollouts.rewards
    original = rollouts.variant == 0
    pool = uniform_groups(rewards, question)
    first = uniform_groups(rewards[original], question[original])
    others = uniform_groups(rewards[~original], question[~original])
    all_correct = uniform_groups(rollouts.correct.float(), question) & _any(rollouts.correct, question)
    return {
        "questions": len(pool),
        "with_neighbours": len(others),
        "zero_gradient/percentage": float((~_any(advantages != 0, question)).sum()),
        "uniform_reward/original": float(first.sum()),
        "uniform_reward/neighbours": float(others.sum()),
        "uniform_reward/pool": float(pool.sum()),
        "uniform_reward/pool_all_correct": float((pool & all_correct).sum()),
        "uniform_reward/pool_all_wrong": float((pool & ~_any(rollouts.correct, question)).sum()),
        "uniform_reward/rescued": float((first & ~pool).sum()),
    }


def _any(flags: Tensor, group: Tensor) -> Tensor:
    """[num_groups] bool, in ascending order of group ids: whether any flag of the group is set."""
    ids, index = torch.unique(group, return_inverse=True)
    return torch.zeros(len(ids), dtype=torch.bool).index_put((index[flags],), torch.tensor(True))
