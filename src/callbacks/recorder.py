"""Every rollout to Parquet, for replay and reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from lightning.pytorch import Callback, LightningModule, Trainer

from ..modules.distributed import rank


class RolloutRecorder(Callback):
    """Writes the rollouts of each training iteration to `rollouts/<iteration>-<rank>.parquet` in the run directory.

    One row per response: `iteration, question, variant, template, prompt, response, answer, correct, reward,
    advantage, length, truncated, logprob` (engine log-prob of the whole response under its sample prompt, nats).

    Reads `batch.groups[…].id`, `batch.rollouts` and `outputs["advantages"]`.
    """

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write one file, at once."""
        iteration = trainer.fit_loop.epoch_loop._batches_that_stepped
        folder = Path(trainer.default_root_dir) / "rollouts"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{iteration:06d}-{rank()}.parquet"
        pq.write_table(rollout_table(batch, outputs["advantages"], iteration), path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)


def rollout_table(batch: Any, advantages: Any, iteration: int) -> pa.Table:
    """The rollouts of a batch as a table with the columns that `RolloutRecorder` names."""
    rollouts = batch.rollouts
    prompts = [rollouts.prompts[row] for row in rollouts.prompt.tolist()]
    return pa.table(
        {
            "iteration": pa.array([iteration] * len(prompts), pa.int64()),
            "question": [batch.groups[row].id for row in rollouts.question.tolist()],
            "variant": rollouts.variant.numpy(),
            "template": [prompt.template for prompt in prompts],
            "prompt": [prompt.text for prompt in prompts],
            "response": list(rollouts.text),
            "answer": pa.array(list(rollouts.answers), pa.string()),
            "correct": rollouts.correct.numpy(),
            "reward": rollouts.rewards.numpy(),
            "advantage": advantages.numpy(),
            "length": rollouts.lengths.numpy(),
            "truncated": rollouts.truncated.numpy(),
            "logprob": [float(logprobs.sum()) for logprobs in rollouts.logprobs],
        }
    )
