"""Checkpoints of runs, and runs that go on from them; killed runs are in tests/test_crash.py."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import pandas as pd
import pytest
import torch
from hydra import compose, initialize_config_module
from hydra.core.hydra_config import HydraConfig
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tagrpo.callbacks import Checkpointer, RolloutCallback
from tagrpo.config import build
from tagrpo.modules.policy import PolicyModule
from tagrpo.rollouts import TransformersEngine
from tagrpo.train import train

SMALL = [
    "iterations=3", "threads=1", "callbacks=[zero_gradient,pass_at_k,checkpoint]", "callbacks.checkpoint.every=1",
    "data.train.size=8", "data.batch_size=2", "data.num_rephrasings=1",
    "data.evaluation_samples=2", "data.evaluation.test_id.size=2", "~data.evaluation.test_phrasing",
    "~data.evaluation.test_size", "rollout.sampling.max_new_tokens=24", "optimizer.lr=1e-3",
    "trainer.val_check_interval=2", "data.samples_per_prompt=4", "+trainer.enable_progress_bar=false",
]  # fmt: skip


def run_of(directory, *overrides):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose("train", [f"hydra.run.dir={directory}", *SMALL, *overrides], return_hydra_config=True)
    cfg.hydra.runtime.output_dir = str(directory)
    HydraConfig.instance().set_config(cfg)
    return build(cfg)


def trained(directory, *overrides, **options):
    run = run_of(directory, *overrides)
    train(run.module, run.datamodule, run.trainer, test=False, **options)
    return run


def weights_of(run):
    return {name: tensor.clone() for name, tensor in run.module.full_parameters()}


def assert_equal(a, b):
    assert all(torch.equal(a[name], b[name]) for name in b)


def logged(directory):
    frame = pd.read_csv(directory / "metrics.csv", dtype=str)
    frame = frame[[name for name in frame if not name.startswith(("seconds/", "throughput/"))]]
    return frame.dropna(how="all", subset=[name for name in frame if name not in ("step", "epoch")])


def names(directory):
    return sorted(path.name for path in (directory / "checkpoints").iterdir())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing happens to, with its last weights."""
    directory = tmp_path_factory.mktemp("whole")
    run = trained(directory)
    weights, start = weights_of(run), dict(run.module.load_model().named_parameters())
    assert not any(torch.equal(weights[name], start[name]) for name in weights), "every weight must be trained"
    return directory, weights


class Broken(RuntimeError):
    """What goes wrong in these tests."""


def failing(original, calls, at):
    def fail(*arguments, **options):
        calls.append(arguments)
        if len(calls) == at:
            raise Broken
        return original(*arguments, **options)

    return fail


def test_rollouts_are_not_sampled_twice_when_their_update_fails(whole, tmp_path, monkeypatch):
    updates, generations = [], []
    monkeypatch.setattr(PolicyModule, "training_step", failing(PolicyModule.training_step, updates, at=2))
    monkeypatch.setattr(TransformersEngine, "generate", failing(TransformersEngine.generate, generations, at=-1))
    options = ["callbacks.checkpoint.every=10", "trainer.limit_val_batches=0"]
    with pytest.raises(Broken):
        trained(tmp_path, *options)
    # The first update was done, of the second only its rollouts; no checkpoint covers either.
    assert len(generations) == 2
    assert len(list((tmp_path / "rollout_cache").iterdir())) == 4
    resumed = trained(tmp_path, *options, resume="auto")
    assert len(generations) == 3
    assert_equal(weights_of(resumed), whole[1])
    assert not list((tmp_path / "rollout_cache").iterdir())


def test_rollouts_of_other_weights_are_not_used(tmp_path, monkeypatch):
    generations = []
    monkeypatch.setattr(PolicyModule, "training_step", failing(PolicyModule.training_step, [], at=2))
    monkeypatch.setattr(TransformersEngine, "generate", failing(TransformersEngine.generate, generations, at=-1))
    options = ["callbacks.checkpoint.every=10", "trainer.limit_val_batches=0"]
    with pytest.raises(Broken):
        trained(tmp_path, *options)
    monkeypatch.setattr(PolicyModule, "training_step", failing(PolicyModule.training_step, [], at=-1))
    # The first rollouts fit, the second came from weights that another learning rate has not led to.
    trained(tmp_path, *options, "optimizer.lr=2e-3", "iterations=2", resume="auto")
    assert len(generations) == 2 + 1


@pytest.mark.parametrize("at", [1, 2, 4])
def test_an_engine_that_fails_leaves_a_checkpoint_of_the_state_before_the_batch(at, whole, tmp_path, monkeypatch):
    # Calls: iteration 0, iteration 1, validation, iteration 2.
    real = TransformersEngine.generate
    monkeypatch.setattr(TransformersEngine, "generate", failing(real, [], at=at))
    with pytest.raises(Broken):
        trained(tmp_path, "callbacks.checkpoint.every=10")
    monkeypatch.setattr(TransformersEngine, "generate", real)
    if at > 1:
        assert names(tmp_path) == [f"iteration-{at // 2:06d}.ckpt"]
    resumed = trained(tmp_path, resume="auto" if at == 1 else "last")
    assert_equal(weights_of(resumed), whole[1])
    pd.testing.assert_frame_equal(logged(tmp_path).reset_index(drop=True), logged(whole[0]).reset_index(drop=True))
    assert (tmp_path / "ledger.json").read_text() == (whole[0] / "ledger.json").read_text()


def test_what_a_failed_batch_has_counted_is_not_in_its_checkpoint(tmp_path, monkeypatch):
    def fail(self, *arguments, real=RolloutCallback.on_train_batch_start):
        real(self, *arguments)
        if self.pipeline.iteration == 2:
            raise Broken  # the second batch is in the ledger by now

    monkeypatch.setattr(RolloutCallback, "on_train_batch_start", fail)
    with pytest.raises(Broken):
        trained(tmp_path, "callbacks.checkpoint.every=10")
    saved = torch.load(tmp_path / "checkpoints" / "iteration-000001.ckpt", weights_only=True)
    (row,) = pd.read_csv(tmp_path / "metrics.csv").to_dict("records")
    assert saved["callbacks"]["RolloutCallback"]["ledger"]["rollouts"] == row["budget/rollouts"]


def test_sigterm_ends_the_run_after_its_iteration_with_exit_code_zero(whole, tmp_path, monkeypatch):
    def told_to_stop(self, batch, batch_idx, real=PolicyModule.training_step):
        os.kill(os.getpid(), signal.SIGTERM)
        return real(self, batch, batch_idx)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(PolicyModule, "training_step", told_to_stop)
    with pytest.raises(SystemExit) as left:
        trained(tmp_path, "callbacks.checkpoint.every=10", export=tmp_path / "model")
    assert not left.value.code
    assert names(tmp_path) == ["iteration-000001.ckpt"]
    assert not (tmp_path / "model").exists()
    assert signal.getsignal(signal.SIGTERM) is before
    monkeypatch.undo()
    assert_equal(weights_of(trained(tmp_path, resume="last")), whole[1])


def test_a_new_run_in_the_same_directory_sets_the_old_one_aside(tmp_path):
    trained(tmp_path, "iterations=2")
    with pytest.warns(UserWarning, match="Moved 2 checkpoints"):
        trained(tmp_path, "iterations=1", "seed=1")
    assert names(tmp_path) == ["iteration-000001.ckpt"]
    assert len(logged(tmp_path)) == 1
    assert len(list((tmp_path / "checkpoints.previous").iterdir())) == 2


def test_a_finished_run_that_is_resumed_trains_no_more(whole, tmp_path, monkeypatch):
    trained(tmp_path)
    written = (tmp_path / "metrics.csv").read_bytes()
    monkeypatch.setattr(PolicyModule, "training_step", failing(PolicyModule.training_step, [], at=1))
    assert_equal(weights_of(trained(tmp_path, resume="last")), whole[1])
    assert (tmp_path / "metrics.csv").read_bytes() == written
    assert json.loads((tmp_path / "ledger.json").read_text())["iterations"] == 3


AHEAD = [
    "rollout.ahead=true", "iterations=5", "callbacks.checkpoint.every=2",
    "+rollout.dynamic_sampling={_target_: tagrpo.rollouts.dynamic_sampling.DynamicSampling, max_draws: 1}",
]  # fmt: skip


@pytest.fixture(scope="module")
def whole_ahead(tmp_path_factory):
    """An undisturbed run that samples one batch ahead, over the end of an epoch."""
    directory = tmp_path_factory.mktemp("whole_ahead")
    weights = weights_of(trained(directory, *AHEAD))
    staleness = logged(directory)["rollout/staleness"].dropna().astype(float)
    assert staleness.iloc[0] == 0
    assert staleness.iloc[1:].gt(0).all()
    return directory, weights


@pytest.mark.parametrize("at", [3, 4])
def test_a_run_that_samples_ahead_and_is_killed_meanwhile_ends_as_an_undisturbed_one(
    at, whole_ahead, tmp_path, monkeypatch
):
    child = os.fork()
    if not child:
        updates, beside = [], []

        def generate(self, *arguments, real=TransformersEngine.generate):
            if threading.current_thread() is not threading.main_thread():
                beside.append(arguments)
            return real(self, *arguments)

        def update(self, batch, batch_idx, real=PolicyModule.training_step):
            updates.append(batch_idx)
            while len(updates) == at:
                if len(beside) == at:  # the next batch is being sampled
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(0.001)
            return real(self, batch, batch_idx)

        monkeypatch.setattr(TransformersEngine, "generate", generate)
        monkeypatch.setattr(PolicyModule, "training_step", update)
        try:
            trained(tmp_path, *AHEAD)
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert names(tmp_path) == ["iteration-000002.ckpt"]
    resumed = trained(tmp_path, *AHEAD, resume="last")
    assert_equal(weights_of(resumed), whole_ahead[1])
    pd.testing.assert_frame_equal(
        logged(tmp_path).reset_index(drop=True), logged(whole_ahead[0]).reset_index(drop=True), check_exact=True
    )
    assert (tmp_path / "ledger.json").read_text() == (whole_ahead[0] / "ledger.json").read_text()
    assert not list((tmp_path / "rollout_cache").iterdir())


def test_tensorboard_forgets_what_came_after_the_checkpoint(tmp_path):
    trained(tmp_path, "callbacks.checkpoint.keep=null")
    trained(tmp_path, resume=tmp_path / "checkpoints" / "iteration-000001.ckpt")
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [0, 1, 2]


def test_every_and_keep_are_at_least_one():
    with pytest.raises(ValueError, match="checkpoint.every"):
        Checkpointer(every=0)
    with pytest.raises(ValueError, match="checkpoint.keep"):
        Checkpointer(keep=0)
