"""Expected share of questions without gradient, for tasks whose correct responses can be listed."""

from typing import cast

import torch
from lightning.pytorch import LightningModule, Trainer

from ..callbacks.shared import batch_means
from ..metrics.functional import zero_gradient_probability
from ..modules.lightning.policy_module import PolicyModule
from ..runs.scalars import log_scalars
from ..types import QuestionBatch
from .exact import BatchSuccess
from .exact_pass_at_k import ExactCallback


class ExactZeroGradient(ExactCallback):
    """Callback that logs expected values of `ZeroGradientMonitor` per iteration, from exact success rates.

    - `uniform_reward/original_expected`: expected percentage of questions whose G responses to the original
      are all right or all wrong; the measured counterpart is `uniform_reward/original`;
    - `uniform_reward/pool_expected`: expected percentage of questions whose responses to the original and to
      rephrasings are all right or all wrong; the measured counterpart is `uniform_reward/pool`.

    The expectation does not include questions that dynamic sampling draws later, replayed responses and
    shaped rewards. With `rollout.ahead`, the responses come from older weights than the expectation. Raises
    the errors of `ExactCallback`.
    """

    success: BatchSuccess

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prepare the exact success rates with the datamodule's tokenizer."""
        self.success = self.batch_success(trainer)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: QuestionBatch, batch_idx: int
    ) -> None:
        """Compute and log the expectations, with the weights that will sample the batch."""
        p = self.success(cast(PolicyModule, pl_module).make_scorer(), batch)
        question = torch.tensor([prompt.question for prompt in batch.prompts])
        samples = torch.tensor([prompt.num_samples for prompt in batch.prompts])
        pools = [question == row for row in range(len(batch.groups))]
        alone = zero_gradient_probability(p, samples, pooled=False)
        together = torch.stack([zero_gradient_probability(p[rows], samples[rows]) for rows in pools])
        original = torch.tensor([prompt.rephrasing == 0 for prompt in batch.prompts])
        values = {"original": alone[original], "pool": together}
        log_scalars(
            pl_module, batch_means({f"uniform_reward/{name}_expected": 100 * x for name, x in values.items()})
        )
