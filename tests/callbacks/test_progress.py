"""What a run says while it works, in a terminal and elsewhere."""

from __future__ import annotations

import io
import logging
import math
import sys

import torch
from lightning.pytorch import LightningModule, Trainer
from rich.console import Console
from torch.utils.data import DataLoader

from tagrpo.callbacks import IterationProgress
from tagrpo.callbacks.shared import total_iterations
from tagrpo.types import SampledPolicy


class Module(LightningModule, SampledPolicy):
    """Three optimizer steps in each iteration; logs what the bar shows."""

    mini_batches = 3

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch, batch_idx):
        for _ in range(self.mini_batches):
            self.optimizers().step()
        self.log_dict({"rollout/correct_original": 0.25, "zero_gradient/without_gradient": 12.0})
        logging.getLogger("a").warning("a message")

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters())


def run(tmp_path, progress, steps=12, fit=True):
    trainer = Trainer(
        default_root_dir=tmp_path, callbacks=[progress], logger=False, accelerator="cpu", max_steps=steps,
        enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    loader = DataLoader([0, 1], batch_size=None)
    if fit:
        trainer.fit(Module(), loader)
    else:
        trainer.test(Module(), [loader, loader], verbose=False)
    return trainer


def test_lines_say_how_far_a_run_is_and_what_it_is_like(tmp_path):
    written = io.StringIO()
    run(tmp_path, IterationProgress(seconds=0.0, console=Console(file=written, width=200)))
    lines = written.getvalue().splitlines()
    assert [line.split(" · ")[0] for line in lines] == [f"iteration {i}/4" for i in (1, 2, 3, 4)]
    assert lines[-1] == "iteration 4/4 · correct on originals 0.25 · without gradient 12 % · 0:00:00 left"


def test_few_lines_are_written_but_the_first_and_the_last_are(tmp_path):
    written = io.StringIO()
    run(tmp_path, IterationProgress(seconds=math.inf, console=Console(file=written, width=200)))
    assert [line.split(" · ")[0] for line in written.getvalue().splitlines()] == ["iteration 1/4", "iteration 4/4"]


def test_a_test_counts_the_batches_of_all_its_splits(tmp_path):
    written = io.StringIO()
    run(tmp_path, IterationProgress(seconds=0.0, console=Console(file=written, width=200)), fit=False)
    assert written.getvalue().splitlines() == [f"test batch {i}/4" for i in (1, 2, 3, 4)]


def test_what_is_logged_stands_above_the_bar(tmp_path, monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(sys, "stdout", written)
    handler = logging.StreamHandler(written)  # made before the bar, with the stream of that time
    logger = logging.getLogger("a")
    monkeypatch.setattr(logger, "propagate", False)
    logger.addHandler(handler)
    try:
        run(tmp_path, IterationProgress(console=Console(file=written, width=100, force_terminal=True)))
    finally:
        logger.removeHandler(handler)
    assert handler.stream is written, "given back"
    messages = [line for line in written.getvalue().splitlines() if "a message" in line]
    assert len(messages) == 4
    assert not any("iteration" in line.split("a message")[1] for line in messages)
    assert "4/4" in written.getvalue()


def test_a_run_without_an_end_shows_none(tmp_path):
    trainer = Trainer(max_steps=-1, max_epochs=-1, logger=False, enable_checkpointing=False, accelerator="cpu")
    assert total_iterations(trainer, Module()) is None
