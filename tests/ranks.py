"""Batches of which each rank of a training has its share."""

from __future__ import annotations

from dataclasses import replace

import torch
from lightning.pytorch import Callback, LightningDataModule
from torch.utils.data import DataLoader

from tagrpo.rollouts.dynamic_sampling import join_batches, take_questions


class RankBatches(LightningDataModule):
    """One batch, of which each rank has its share; of a single process the whole, question by question."""

    def __init__(self, shares, single):
        super().__init__()
        self.shares, self.single = shares, single

    def share(self):
        if not self.single:
            return self.shares[self.trainer.global_rank]
        questions = range(len(self.shares[0].groups))
        parts = [
            take_questions(share, torch.tensor([question])) for question in questions for share in self.shares
        ]
        return join_batches(parts)

    def train_dataloader(self):
        return DataLoader([replace(self.share(), rollouts=None)], batch_size=None)


class AttachShare(Callback):
    """Attaches the rollouts of `RankBatches` where the rollout callback would."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        batch.rollouts = trainer.datamodule.share().rollouts
