"""What a run says while it works."""

from __future__ import annotations

import math

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from tagrpo.callbacks import IterationProgress
from tagrpo.callbacks.shared import total_iterations
from tagrpo.types import SampledPolicy


class Module(LightningModule, SampledPolicy):
    """Three optimizer steps in each iteration; logs what is shown."""

    mini_batches = 3

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch, batch_idx):
        for _ in range(self.mini_batches):
            self.optimizers().step()
        self.log_dict({"rollout/correct_original": 0.25, "zero_gradient/without_gradient": 12.0})

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


def lines_of(capsys):
    return [
        line for line in capsys.readouterr().out.splitlines() if line.startswith(("iteration", "test batch"))
    ]


def test_lines_say_how_far_a_run_is_and_what_it_is_like(tmp_path, capsys):
    run(tmp_path, IterationProgress(seconds=0.0))
    lines = lines_of(capsys)
    assert [line.split(" · ")[0] for line in lines] == [f"iteration {i}/4" for i in (1, 2, 3, 4)]
    assert lines[-1] == "iteration 4/4 · correct on originals 0.25 · without gradient 12 % · 0:00:00 left"


def test_few_lines_are_written_but_the_first_and_the_last_are(tmp_path, capsys):
    run(tmp_path, IterationProgress(seconds=math.inf))
    assert [line.split(" · ")[0] for line in lines_of(capsys)] == ["iteration 1/4", "iteration 4/4"]


def test_a_test_counts_the_batches_of_all_its_splits(tmp_path, capsys):
    run(tmp_path, IterationProgress(seconds=0.0), fit=False)
    assert lines_of(capsys) == [f"test batch {i}/4" for i in (1, 2, 3, 4)]


def test_a_run_without_an_end_shows_none(tmp_path):
    trainer = Trainer(
        max_steps=-1, max_epochs=-1, logger=False, enable_checkpointing=False, accelerator="cpu"
    )
    assert total_iterations(trainer, Module()) is None


def test_a_last_iteration_whose_updates_are_cut_off_counts():
    trainer = Trainer(max_steps=5, max_epochs=-1, logger=False, enable_checkpointing=False, accelerator="cpu")
    assert total_iterations(trainer, Module()) == 2, "of three steps, and of two"
