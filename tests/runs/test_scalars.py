"""The order of callbacks, and scalars as rows of an iteration, beside what Lightning's own log makes of them."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from tagrpo.callbacks import (
    Checkpointer,
    PassAtKEvaluator,
    RolloutRecorder,
    ThroughputMonitor,
    ZeroGradientMonitor,
)
from tagrpo.runs.scalars import ScalarLog, Stage, in_order, log_scalars


class Plain(LightningModule):
    """Logs from its training step and at the end of evaluations."""

    def __init__(self, log):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.put = log

    def training_step(self, batch, batch_idx):
        self.put(self, {"step/third": batch / 3, "step/index": float(batch_idx)})
        return self.weight.sum()

    def validation_step(self, batch, batch_idx):
        pass

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Talkative(Callback):
    """Logs around batches and at the end of evaluations, where the latter are done from callbacks too."""

    def __init__(self, log, name):
        self.put = log
        self.name = name
        self.seen = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.put(pl_module, {f"{self.name}/start": float(batch) / 7})

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.put(
            pl_module,
            {f"{self.name}/sum": float(batch) + batch_idx, f"{self.name}/square": float(batch) ** 2 / 3},
        )
        self.seen.append({name: float(value) for name, value in trainer.callback_metrics.items()})

    def on_validation_epoch_end(self, trainer, pl_module):
        if not trainer.sanity_checking:
            self.put(pl_module, {f"{self.name}/validated": trainer.global_step / 3})

    def on_test_epoch_end(self, trainer, pl_module):
        self.put(pl_module, {f"{self.name}/tested": trainer.global_step / 3})


def trainer_of(folder, *callbacks, **options):
    return Trainer(
        accelerator="cpu", default_root_dir=folder, callbacks=[*callbacks], enable_checkpointing=False,
        logger=CSVLogger(folder, name="", version="", flush_logs_every_n_steps=1), enable_progress_bar=False,
        enable_model_summary=False, **{"max_epochs": 3, "log_every_n_steps": 1, **options},
    )  # fmt: skip


def fitted(folder, log, *more, **options):
    """What was logged, and what the callbacks saw and what was left in `callback_metrics` at the end of each stage."""
    callbacks = [Talkative(log, "a"), Talkative(log, "b")]
    trainer = trainer_of(folder, *callbacks, *more, val_check_interval=2, num_sanity_val_steps=1, **options)
    numbers, module = DataLoader(torch.arange(5.0), batch_size=None), Plain(log)
    trainer.fit(module, numbers, numbers)
    left = [dict(trainer.callback_metrics)]
    for stage in (trainer.validate, trainer.test):
        stage(module, numbers, verbose=False)
        left.append(dict(trainer.callback_metrics))
    return pd.read_csv(folder / "metrics.csv"), [callback.seen for callback in callbacks], left


@pytest.mark.parametrize(
    "options", [{}, {"log_every_n_steps": 2}, {"log_every_n_steps": 0}, {"max_steps": 7}]
)
def test_loggers_and_callbacks_see_what_lightnings_log_shows_them(options, tmp_path):
    expected, seen, left = fitted(
        tmp_path / "lightning", lambda module, values: module.log_dict(dict(values)), **options
    )
    found, also_seen, also_left = fitted(tmp_path / "rows", log_scalars, ScalarLog(), **options)
    pd.testing.assert_frame_equal(found, expected, check_exact=True)
    assert also_seen == seen
    assert also_left == left
    logged = {2: 7, 0: 0}.get(options.get("log_every_n_steps"), options.get("max_steps", 15))
    assert (found["a/sum"].notna().sum() if "a/sum" in found else 0) == logged


def test_without_a_scalar_log_scalars_take_lightnings_way(tmp_path):
    expected, *_ = fitted(tmp_path / "lightning", lambda module, values: module.log_dict(dict(values)))
    found, *_ = fitted(tmp_path / "foreign", log_scalars)
    pd.testing.assert_frame_equal(found, expected, check_exact=True)


def test_a_scalar_stands_only_in_the_row_of_its_iteration(tmp_path):
    class Rare(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 1:
                log_scalars(pl_module, {"rare": 1.0})

    trainer = trainer_of(tmp_path, Rare(), ScalarLog(), max_epochs=1)
    trainer.fit(Plain(log_scalars), DataLoader(torch.arange(3.0), batch_size=None))
    frame = pd.read_csv(tmp_path / "metrics.csv")
    assert frame["rare"].notna().tolist() == [False, True, False]
    assert frame["step/index"].tolist() == [0, 1, 2]
    assert trainer.callback_metrics["rare"] == 1


def test_nothing_of_an_iteration_that_is_not_logged_comes_into_the_next_row(tmp_path):
    class Rare(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            log_scalars(pl_module, {f"batch{batch_idx}": 1.0})

    trainer = trainer_of(tmp_path, Rare(), ScalarLog(), max_epochs=1, log_every_n_steps=2)
    trainer.fit(Plain(log_scalars), DataLoader(torch.arange(4.0), batch_size=None))
    assert {"batch1", "batch3"} == {
        name for name in pd.read_csv(tmp_path / "metrics.csv") if name.startswith("batch")
    }


def test_scalars_do_not_pass_through_lightnings_log(tmp_path, monkeypatch):
    names = []
    monkeypatch.setattr(LightningModule, "log", lambda self, name, *arguments, **options: names.append(name))
    fitted(tmp_path, log_scalars, ScalarLog())
    assert names == [], "that costs a third of a millisecond each"


class Sampler(Callback):
    """Stands in for the rollout callback."""

    stage = Stage.ROLLOUT


def test_callbacks_are_sorted_by_stage_and_otherwise_stay_as_they_were_given():
    progress, checkpoint, clock, sampler, log = (
        RichProgressBar(), Checkpointer(), ThroughputMonitor(), Sampler(), ScalarLog(),
    )  # fmt: skip
    diagnostics = [RolloutRecorder(), ZeroGradientMonitor(), PassAtKEvaluator()]
    given = [log, diagnostics[0], progress, sampler, *diagnostics[1:], clock, checkpoint]
    assert in_order(given) == [checkpoint, clock, diagnostics[0], progress, *diagnostics[1:], sampler, log]
