"""A Lightning module of another project corrects the mismatch between its engine and its trainer."""

from __future__ import annotations

import math

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from tagrpo.modules.mismatch import MismatchCorrection


class ForeignModule(LightningModule):
    """Somebody else's REINFORCE: a table of logits, padded batches, automatic optimisation."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(7))
        self.mismatch = MismatchCorrection(weight="token", cap=2.0, reject="token", low=0.5)  # 1

    def training_step(self, batch, batch_idx):
        tokens, sampled_logprobs, advantages, mask = batch
        logprobs = self.table.log_softmax(-1)[tokens]
        corrected = self.mismatch(logprobs, sampled_logprobs, mask)  # 2
        self.log_dict(corrected.metrics())  # 3
        return -(advantages[:, None] * logprobs * corrected.weights).sum() / mask.sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


def test_a_foreign_lightning_module_needs_three_lines(tmp_path):
    tokens = torch.tensor([[0, 1, 2], [3, 4, 0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    ratios = torch.tensor([[1.0, 3.0, 0.4], [1.5, 0.8, 1.0]])
    sampled, advantages = -math.log(7) - ratios.log(), torch.tensor([1.0, -2.0])
    module = ForeignModule()
    trainer = Trainer(
        max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(module, DataLoader([(tokens, sampled, advantages, mask)], batch_size=None))
    # Tokens 0 to 4 with weights 1, 2 (truncated), 0 (rejected), 1.5, 0.8 and advantages 1, 1, 1, −2, −2.
    pull = torch.tensor([1.0, 2.0, 0.0, -3.0, -1.6, 0.0, 0.0]) / 5
    torch.testing.assert_close(module.table.detach(), pull - pull.sum() / 7)
    logged = {name: float(value) for name, value in trainer.logged_metrics.items()}
    assert logged == pytest.approx(
        {"weight": 1.06, "rejected": 0.2, "truncated": 0.2, "ess": 5.3**2 / (5 * 7.89)}
    )
