"""Record of every rollout in Parquet files, to be read or replayed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from ..distributed import rank
from ..files import written_whole
from .shared import BatchDiagnostic, advantages_of, current_iteration, delete_later, reference_texts

RETURNED = ("entropy", "ratio", "kl", "clipped", "score_logprob", "masked")


class RolloutRecorder(BatchDiagnostic):
    """Callback that writes rollouts to `rollouts/<iteration>-<rank>.parquet` in the run directory.

    A file has one row per response, in the order of the responses, with these columns: `iteration`, `step`
    (optimizer steps before the batch), `question` (id), `reference` (accepted answers), `rephrasing,
    template, prompt, response, answer, correct, reward`, a column `reward_term/<name>` for each shaped term,
    `advantage, length, truncated`, and `logprob`, the engine's log-prob of the whole response under its
    sample prompt in nats (`logprob / length` is the mean per token). With `tokens`, the lists `token_ids` and
    `token_logprobs` are written too.

    These columns are written if the training step returns them: `score_logprob` (the trainer's log-prob under
    the score prompt), `entropy`, `ratio`, `kl`, `clipped` (means per token), `masked`, and, with `tokens`,
    the list `token_entropies`, null for a response without forward pass. All columns together suffice to
    replay an advantage strategy (`notebooks/replay.py`).

    Files take about 10 bytes per token with `tokens`, and about one byte per token without. A resumed run
    rewrites the files of its iterations.

    Args:
        tokens: Whether to write the tokens and their log-probs.
    """

    def __init__(self, tokens: bool = True) -> None:
        self.tokens = tokens
        self._step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        delete_later(trainer, "rollouts/*.parquet", current_iteration(trainer))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._step = trainer.global_step

    def measure(self, trainer: Trainer, batch: Any, outputs: Any) -> dict[str, float]:
        """Write this rank's rollouts of the batch to a separate file; return no scalars to log."""
        advantages_of(outputs)  # raises where they are missing
        iteration = current_iteration(trainer)
        table = rollout_table(batch, outputs, iteration, self._step, tokens=self.tokens)
        path = Path(trainer.default_root_dir) / "rollouts" / f"{iteration:06d}-{rank()}.parquet"
        with written_whole(path) as partial:
            pq.write_table(table, partial, compression="zstd")
        return {}


def rollout_table(
    batch: Any, outputs: Mapping[str, Any], iteration: int, step: int, *, tokens: bool = True
) -> pa.Table:
    """Return the rollouts of a batch as a table with the columns of `RolloutRecorder`.

    `outputs` has `advantages`, and may have the keys in `RETURNED` and `token_entropies`. `step` is the
    number of optimizer steps before the batch.
    """
    rollouts = batch.rollouts
    prompts = [rollouts.prompts[row] for row in rollouts.prompt.tolist()]
    groups = [batch.groups[row] for row in rollouts.question.tolist()]
    columns = {
        "iteration": np.full(len(prompts), iteration),
        "step": np.full(len(prompts), step),
        "question": [group.id for group in groups],
        "reference": pa.array(
            [reference_texts(getattr(group, "answer", ())) for group in groups], pa.list_(pa.string())
        ),
        "rephrasing": rollouts.rephrasing.numpy(),
        "template": [prompt.template for prompt in prompts],
        "prompt": [prompt.text for prompt in prompts],
        "response": list(rollouts.text),
        "answer": pa.array(list(rollouts.answers), pa.string()),
        "correct": rollouts.correct.numpy(),
        "reward": rollouts.rewards.numpy(),
        **{f"reward_term/{name}": term.numpy() for name, term in rollouts.reward_terms.items()},
        "advantage": advantages_of(outputs).numpy(),
        "length": rollouts.lengths.numpy(),
        "truncated": rollouts.truncated.numpy(),
        "logprob": [float(logprobs.double().sum()) for logprobs in rollouts.logprobs],
        **{name: outputs[name].cpu().numpy() for name in RETURNED if outputs.get(name) is not None},
    }
    if tokens:
        columns["token_ids"] = _lists(rollouts.token_ids, torch.int32)
        columns["token_logprobs"] = _lists(rollouts.logprobs, torch.float32)
        if (entropies := outputs.get("token_entropies")) is not None:
            columns["token_entropies"] = _lists(entropies, torch.float16)
    return pa.table(columns)


def _lists(values: Sequence[Tensor | None], kind: torch.dtype) -> pa.ListArray:
    """Return an array with one list per response and null for None, without making an object per token."""
    missing = pa.array([v is None for v in values])
    found = [torch.zeros(0) if v is None else v.cpu() for v in values] or [torch.zeros(0)]
    offsets = torch.tensor([0, *map(len, found[: len(values)])]).cumsum(0)
    flat = torch.cat([v.to(kind) for v in found])
    return pa.ListArray.from_arrays(pa.array(offsets.int().numpy()), pa.array(flat.numpy()), mask=missing)
