"""Scalars by the cheap way and by Lightning's: nobody sees a difference."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from tagrpo.scalars import forget_logged, log_scalars


class Plain(LightningModule):
    """Logs by Lightning's own way, over steps and over epochs, as other projects do."""

    def __init__(self, log):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.put = log

    def training_step(self, batch, batch_idx):
        self.put(self, {"step/third": batch / 3, "step/index": batch_idx})
        self.log("plain/step", batch + 0.5)
        self.log("plain/epoch", batch, on_step=True, on_epoch=True)
        return self.weight.sum()

    def validation_step(self, batch, batch_idx):
        self.log("plain/validation", batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Talkative(Callback):
    """Logs around batches; some names come only now and then, for the first time at the beginning of an epoch."""

    def __init__(self, log, name):
        self.put = log
        self.name = name
        self.seen = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.put(pl_module, {f"{self.name}/start": float(batch) / 7})

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        always = {f"{self.name}/sum": float(batch) + batch_idx, f"{self.name}/square": float(batch) ** 2 / 3}
        rare = {f"{self.name}/epoch{trainer.current_epoch}": 1.0} if batch_idx % 2 == 0 else {}
        self.put(pl_module, {**always, **rare})
        self.seen.append({name: float(value) for name, value in trainer.callback_metrics.items()})


def fitted(folder, log, log_every=1):
    callbacks = [Talkative(log, "a"), Talkative(log, "b")]
    trainer = Trainer(
        accelerator="cpu", max_epochs=3, default_root_dir=folder, callbacks=callbacks, log_every_n_steps=log_every,
        logger=CSVLogger(folder, name="", version=""), enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, val_check_interval=2,
    )  # fmt: skip
    numbers = DataLoader(torch.arange(5.0), batch_size=None)
    trainer.fit(Plain(log), numbers, numbers)
    return pd.read_csv(folder / "metrics.csv"), [callback.seen for callback in callbacks]


@pytest.mark.parametrize("log_every", [1, 2])
def test_loggers_and_callbacks_see_what_lightnings_log_shows_them(log_every, tmp_path):
    expected, seen = fitted(tmp_path / "lightning", lambda module, values: module.log_dict(values), log_every)
    found, also_seen = fitted(tmp_path / "cheap", log_scalars, log_every)
    pd.testing.assert_frame_equal(found, expected)
    assert also_seen == seen
    assert found["a/sum"].notna().sum() == 15 // log_every
    assert found["b/epoch1"].notna().any(), "new in an epoch's first batch, after others of the same hook"


def test_a_scalar_passes_through_lightnings_log_only_once_an_epoch(tmp_path, monkeypatch):
    names = []

    def log(self, name, *arguments, real=LightningModule.log, **options):
        names.append(name)
        real(self, name, *arguments, **options)

    monkeypatch.setattr(LightningModule, "log", log)
    fitted(tmp_path, log_scalars)
    assert names.count("plain/step") == 15
    assert names.count("a/sum") == names.count("a/start") == names.count("step/third") == 3
    assert names.count("b/sum") == 1, "in later epochs another scalar of its hook has gone before"


def test_what_was_forgotten_is_not_logged_again(tmp_path):
    class Forgetful(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            forget_logged(trainer)
            if batch_idx == 0:
                log_scalars(pl_module, {"first": 1.0})

    trainer = Trainer(
        accelerator="cpu", max_epochs=1, default_root_dir=tmp_path, callbacks=[Forgetful()], log_every_n_steps=1,
        logger=CSVLogger(tmp_path, name="", version=""), enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Plain(log_scalars), DataLoader(torch.arange(3.0), batch_size=None))
    frame = pd.read_csv(tmp_path / "metrics.csv").dropna(subset=["plain/step"])
    assert frame["first"].notna().tolist() == [True, False, False]
    assert frame["step/index"].tolist() == [0, 1, 2]
    assert trainer.callback_metrics["plain/epoch"] == 1, "the mean over the epoch is not forgotten"
