"""What a run says while it works."""

from __future__ import annotations

import io
import math
import re
import sys

import pytest
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
        self.log_dict(
            {"rollout/correct_original": 0.25, "rollout/reward": 0.5, "zero_gradient/without_gradient": 12.0}
        )

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
    assert (
        lines[-1]
        == "iteration 4/4 · correct on originals 0.25 · reward 0.50 · without gradient 12 % · 0:00:00 left"
    )


def test_few_lines_are_written_but_the_first_and_the_last_are(tmp_path, capsys):
    run(tmp_path, IterationProgress(seconds=math.inf))
    assert [line.split(" · ")[0] for line in lines_of(capsys)] == ["iteration 1/4", "iteration 4/4"]


def test_a_test_counts_the_batches_of_all_its_splits(tmp_path, capsys):
    run(tmp_path, IterationProgress(seconds=0.0), fit=False)
    assert lines_of(capsys) == [f"test batch {i}/4" for i in (1, 2, 3, 4)]


class Terminal(io.StringIO):
    """Standard output that says that it is a terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize("fit", [True, False])
def test_a_terminal_gets_a_bar_with_the_time_left_reward_correct_and_without_gradient(
    tmp_path, monkeypatch, fit
):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    run(tmp_path, IterationProgress(), fit=fit)
    rows = [
        row
        for row in re.split(r"\x1b\[2K", re.sub(r"\x1b\[[\d;?]*[mhl]", "", terminal.getvalue()))
        if "/4" in row
    ]
    assert {row.split()[0] for row in rows} == {f"{i}/4" for i in (1, 2, 3, 4)}
    assert all("━" in row for row in rows), "the bar is seen on 80 columns"
    assert all(len(row.rstrip()) <= 80 for row in rows)
    if fit:
        assert "0:00:00 left · reward 0.50 · correct 0.25 · without gradient 12 %" in rows[-1]
    assert "iteration 1/4 ·" not in terminal.getvalue(), "no lines beside the bar"
    assert terminal.getvalue().count("\x1b[?25l") == terminal.getvalue().count("\x1b[?25h"), (
        "the cursor comes back"
    )


def test_a_file_gets_lines_even_if_its_run_is_started_from_a_terminal(tmp_path, monkeypatch):
    for bar, drawn in ((None, False), (True, True), (False, False)):
        written = io.StringIO() if bar is not False else Terminal()
        monkeypatch.setattr(sys, "stdout", written)
        run(tmp_path, IterationProgress(bar=bar))
        assert ("━" in written.getvalue()) is drawn
        assert ("iteration 4/4 · " in written.getvalue()) is not drawn


def test_a_run_that_fails_gives_the_terminal_back(tmp_path, monkeypatch):
    class Fails(Module):
        def training_step(self, batch, batch_idx):
            raise RuntimeError("the machine went away")

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    progress = IterationProgress(bar=True)
    trainer = Trainer(default_root_dir=tmp_path, callbacks=[progress], logger=False, accelerator="cpu", max_steps=3,
                      enable_model_summary=False, enable_checkpointing=False)  # fmt: skip
    with pytest.raises(RuntimeError):
        trainer.fit(Fails(), DataLoader([0], batch_size=None))
    assert progress._drawn is None
    assert terminal.getvalue().count("\x1b[?25l") == terminal.getvalue().count("\x1b[?25h")


def test_a_run_without_an_end_shows_none(tmp_path):
    trainer = Trainer(
        max_steps=-1, max_epochs=-1, logger=False, enable_checkpointing=False, accelerator="cpu"
    )
    assert total_iterations(trainer, Module()) is None


def test_a_last_iteration_whose_updates_are_cut_off_counts():
    trainer = Trainer(max_steps=5, max_epochs=-1, logger=False, enable_checkpointing=False, accelerator="cpu")
    assert total_iterations(trainer, Module()) == 2, "of three steps, and of two"
