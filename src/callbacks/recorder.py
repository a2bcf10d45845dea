"""Every rollout to Parquet, for replay and reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ..modules.distributed import rank
from .shared import advantages_of, current_iteration


class RolloutRecorder(Callback):
    """Writes the rollouts of each training iteration to `rollouts/<iteration>-<rank>.parquet` in the run directory.

    One row per response, in their order: `iteration, question` (id), `variant, template, prompt, response, answer,
    correct, reward`, `reward_term/<name>` of each shaped term, `advantage, length, truncated, logprob` (engine log-prob
    of the whole response under its sample prompt, nats; its mean per token is `logprob / length`), and as lists
    `token_ids` and `token_logprobs`. What an advantage strategy needs to be replayed is all there; `entropy` (mean per
    token under the score prompt, nats) where the training step returns it.

    Reads `batch.groups[…].id`, `batch.rollouts` (all fields but `seconds`), `outputs["advantages"]` and
    `outputs["entropy"]`. About 10 bytes per token; a resumed run writes the files of its iterations again.
    """

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write one file, at once."""
        iteration = current_iteration(trainer)
        folder = Path(trainer.default_root_dir) / "rollouts"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{iteration:06d}-{rank()}.parquet"
        table = rollout_table(batch, advantages_of(outputs), iteration, outputs.get("entropy"))
        pq.write_table(table, path.with_suffix(".tmp"), compression="zstd")
        path.with_suffix(".tmp").replace(path)


def rollout_table(batch: Any, advantages: Tensor, iteration: int, entropy: Tensor | None = None) -> pa.Table:
    """The rollouts of a batch as a table with the columns that `RolloutRecorder` names."""
    rollouts = batch.rollouts
    prompts = [rollouts.prompts[row] for row in rollouts.prompt.tolist()]
    columns = {
        "iteration": pa.array([iteration] * len(prompts), pa.int64()),
        "question": [batch.groups[row].id for row in rollouts.question.tolist()],
        "variant": rollouts.variant.numpy(),
        "template": [prompt.template for prompt in prompts],
        "prompt": [prompt.text for prompt in prompts],
        "response": list(rollouts.text),
        "answer": pa.array(list(rollouts.answers), pa.string()),
        "correct": rollouts.correct.numpy(),
        "reward": rollouts.rewards.numpy(),
        **{f"reward_term/{name}": term.numpy() for name, term in rollouts.reward_terms.items()},
        "advantage": advantages.numpy(),
        "length": rollouts.lengths.numpy(),
        "truncated": rollouts.truncated.numpy(),
        "logprob": [float(logprobs.double().sum()) for logprobs in rollouts.logprobs],
        "token_ids": pa.array([ids.numpy() for ids in rollouts.token_ids], pa.list_(pa.int32())),
        "token_logprobs": pa.array([logprobs.numpy() for logprobs in rollouts.logprobs], pa.list_(pa.float32())),
    }
    if entropy is not None:
        columns["entropy"] = entropy.cpu().numpy()
    return pa.table(columns)
