"""Checkpoints of runs, and runs that go on from them; killed runs are in tests/test_crash.py."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import threading
import time
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tagrpo.callbacks import Checkpointer, RolloutCallback
from tagrpo.cli.train import train
from tagrpo.modules.lightning.policy_module import PolicyModule
from tagrpo.rollouts import TransformersEngine
from tagrpo.runs.checkpoints import unsharded
from tagrpo.runs.secrets import save_resolved
from tagrpo.settings.config import build, compose_run
from tagrpo.starter import starter_path
from tagrpo.study.evaluate import evaluate
from tests.helpers import forked

SMALL = [
    "iterations=3", "threads=1", "callbacks=[zero_gradient,pass_at_k,checkpoint]", "callbacks.checkpoint.every=1",
    "data.train.size=8", "data.batch_size=2", "data.num_rephrasings=1",
    "data.evaluation_samples=2", "data.evaluation.test_id.size=2", "~data.evaluation.test_phrasing",
    "~data.evaluation.test_size", "rollout.sampling.max_new_tokens=24", "optimizer.lr=1e-3",
    "trainer.val_check_interval=2", "data.samples_per_prompt=4", "+trainer.enable_progress_bar=false",
]  # fmt: skip


def composed(directory, *overrides):
    return compose_run(directory, [*SMALL, *overrides])


def run_of(directory, *overrides):
    return build(composed(directory, *overrides))


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
    run = trained(directory, export=directory / "model")
    weights, start = weights_of(run), dict(run.module.load_model().named_parameters())
    assert not any(torch.equal(weights[name], start[name]) for name in weights), (
        "every weight must be trained"
    )
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


def test_responses_of_this_machine_are_sampled_again_alike_when_their_update_fails(
    whole, tmp_path, monkeypatch
):
    updates, generations = [], []
    monkeypatch.setattr(PolicyModule, "training_step", failing(PolicyModule.training_step, updates, at=2))
    monkeypatch.setattr(
        TransformersEngine, "generate", failing(TransformersEngine.generate, generations, at=-1)
    )
    options = ["callbacks.checkpoint.every=10", "trainer.limit_val_batches=0"]
    with pytest.raises(Broken):
        trained(tmp_path, *options)
    assert len(generations) == 2
    assert not (tmp_path / "rollout_cache").exists()
    resumed = trained(tmp_path, *options, resume="auto")
    assert len(generations) == 2 + 3, "no checkpoint covered the first two"
    assert_equal(weights_of(resumed), whole[1])


@pytest.mark.parametrize(
    "at", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)]
)
def test_an_engine_that_fails_leaves_a_checkpoint_of_the_state_before_the_batch(
    at, whole, tmp_path, monkeypatch
):
    # Calls: iteration 0, iteration 1, validation, iteration 2.
    real = TransformersEngine.generate
    monkeypatch.setattr(TransformersEngine, "generate", failing(real, [], at=at))
    with pytest.raises(Broken):
        trained(tmp_path, "callbacks.checkpoint.every=10")
    monkeypatch.setattr(TransformersEngine, "generate", real)
    if at > 1:
        assert names(tmp_path) == [f"iteration-{at // 2:06d}.ckpt"]
    resumed = trained(tmp_path, resume="auto")
    assert_equal(weights_of(resumed), whole[1])
    pd.testing.assert_frame_equal(
        logged(tmp_path).reset_index(drop=True), logged(whole[0]).reset_index(drop=True)
    )
    assert (tmp_path / "ledger.json").read_text() == (whole[0] / "ledger.json").read_text()


@pytest.mark.parametrize(
    ("error", "at"),
    [
        (KeyboardInterrupt(), 1),
        pytest.param(OSError(errno.EIO, "Input/output error"), 2, marks=pytest.mark.runs),
        pytest.param(KeyboardInterrupt(), 2, marks=pytest.mark.slow),
        pytest.param(OSError(errno.EIO, "Input/output error"), 1, marks=pytest.mark.slow),
    ],
    ids=repr,
)
def test_an_interrupt_or_an_error_while_a_checkpoint_is_written_leaves_none_of_it(
    at, error, whole, tmp_path, monkeypatch
):
    writes = []

    def save(content, file, real=torch.save):
        if "state_dict" in content:
            writes.append(file)
            if len(writes) == at:
                raise error
        real(content, file)

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises((SystemExit, OSError)):
        trained(tmp_path)
    assert names(tmp_path) == [f"iteration-{number:06d}.ckpt" for number in range(1, at)]
    assert_equal(weights_of(trained(tmp_path, resume="auto")), whole[1])
    pd.testing.assert_frame_equal(
        logged(tmp_path).reset_index(drop=True), logged(whole[0]).reset_index(drop=True)
    )


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
    assert_equal(weights_of(trained(tmp_path, resume="auto")), whole[1])


def test_without_the_command_a_new_run_in_the_same_directory_sets_the_old_one_aside(tmp_path):
    trained(tmp_path, "iterations=2")
    with pytest.warns(UserWarning, match="Moved 2 checkpoints"):
        trained(tmp_path, "iterations=1", "seed=1")
    assert names(tmp_path) == ["iteration-000001.ckpt"]
    assert len(logged(tmp_path)) == 1
    assert len(list((tmp_path / "checkpoints.previous").iterdir())) == 2


def test_a_finished_run_that_is_resumed_trains_no_more(whole, tmp_path, monkeypatch):
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    written = (tmp_path / "metrics.csv").read_bytes()
    monkeypatch.setattr(PolicyModule, "training_step", failing(PolicyModule.training_step, [], at=1))
    assert_equal(weights_of(trained(tmp_path, resume="auto")), whole[1])
    assert (tmp_path / "metrics.csv").read_bytes() == written
    assert json.loads((tmp_path / "ledger.json").read_text())["iterations"] == 3


def test_what_a_kill_after_the_last_checkpoint_has_left_is_cleared_up(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    extra = tmp_path / "checkpoints" / "iteration-000001.ckpt"
    extra.write_bytes((tmp_path / "checkpoints" / "iteration-000003.ckpt").read_bytes())
    kept = tmp_path / "rollout_cache" / "000002-0-0.pt"
    kept.parent.mkdir()
    kept.touch()
    trained(tmp_path, resume="auto")
    assert names(tmp_path) == ["iteration-000002.ckpt", "iteration-000003.ckpt"]
    assert not kept.exists()


@pytest.mark.runs
def test_files_of_iterations_that_are_still_to_come_are_deleted(tmp_path):
    options = ["callbacks=[pass_at_k,recorder,checkpoint]", "callbacks.checkpoint.keep=null"]
    trained(tmp_path, *options)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "rollouts").iterdir()}
    (tmp_path / "test.json").write_text("{}")
    later = [
        tmp_path / "evaluations" / "test-000003.json",
        tmp_path / "rollouts" / "000002-1.parquet",
    ]  # two ranks then
    later.append(tmp_path / "rollouts" / ".partial-000001-1.parquet")
    for path in later:
        path.touch()
    with pytest.warns(UserWarning, match="Moved 2"):
        trained(tmp_path, *options, resume=tmp_path / "checkpoints" / "iteration-000001.ckpt")
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "rollouts").iterdir()}
    assert set(after) == {f"{number:06d}-0.parquet" for number in range(3)}
    assert {name for name in after if after[name] == before[name]} == {"000000-0.parquet"}
    assert not any(path.exists() for path in [*later, tmp_path / "test.json"])


@pytest.mark.parametrize("schedule", [pytest.param("constant", marks=pytest.mark.runs), "linear"])
def test_a_resumed_run_goes_on_with_the_learning_rate_that_it_is_given(schedule, tmp_path):
    options = [f"policy.schedule={schedule}", "policy.warmup=0", "trainer.limit_val_batches=0"]
    trained(tmp_path, *options, "iterations=2")
    trained(tmp_path, *options, "iterations=4", "optimizer.lr=5e-4", resume="auto")
    rates = logged(tmp_path)["train/lr"].astype(float).tolist()
    # The mean of the rates of both optimizer steps: of 4 steps in all, then of 8.
    linear = [
        1e-3 * (1 + 3 / 4) / 2,
        1e-3 * (2 / 4 + 1 / 4) / 2,
        5e-4 * (4 / 8 + 3 / 8) / 2,
        5e-4 * (2 / 8 + 1 / 8) / 2,
    ]
    last = [1e-3 * 3 / 4, 1e-3 / 4, 5e-4 * 3 / 8, 5e-4 / 8]
    first = [1e-3, 1e-3 * 2 / 4, 5e-4 * 4 / 8, 5e-4 * 2 / 8]
    expected = {"constant": [[1e-3, 1e-3, 5e-4, 5e-4]], "linear": [linear, last, first]}[schedule]
    assert any(rates == pytest.approx(wanted) for wanted in expected), rates


def test_other_questions_in_the_same_number_are_refused(tmp_path):
    trained(tmp_path, "iterations=1")
    with pytest.raises(ValueError, match="data.train"):
        trained(tmp_path, "data.train.regime=hard", resume="auto")


def copied_starter(folder):
    return shutil.copytree(starter_path(), folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))


@pytest.mark.runs
def test_another_model_or_tokenizer_is_refused_and_the_same_ones_elsewhere_are_not(whole, tmp_path):
    run, moved = tmp_path / "run", copied_starter(tmp_path / "moved")
    trained(run, "iterations=1", "loss.kl_coef=0.01")
    trained(run, "iterations=2", "loss.kl_coef=0.01", f"model.path={moved}", resume="auto")
    with pytest.raises(ValueError, match=r"model\.path"):
        trained(run, "loss.kl_coef=0.01", f"model.path={whole[0] / 'model'}", resume="auto")
    tokenizer = json.loads((moved / "tokenizer.json").read_text())
    (moved / "tokenizer.json").write_text(json.dumps(tokenizer | {"normalizer": {"type": "NFC"}}))
    with pytest.raises(ValueError, match=r"data\.tokenizer"):
        trained(run, "loss.kl_coef=0.01", f"data.tokenizer={moved}", resume="auto")


def test_a_checkpoint_is_evaluated_whatever_weights_it_replaces(whole, tmp_path):
    run = run_of(tmp_path, f"model.path={whole[0] / 'model'}")
    evaluate(
        run.module, run.datamodule, run.trainer, checkpoint=whole[0] / "checkpoints" / "iteration-000003.ckpt"
    )
    assert_equal(weights_of(run), whole[1])


@pytest.mark.runs
@pytest.mark.distributed
def test_the_strategy_may_change_over_a_resume_and_for_an_evaluation(whole, tmp_path):
    def sharded(directory, *overrides):
        fsdp2 = ["strategy=fsdp2", "trainer.devices=1", "callbacks.checkpoint.keep=null"]
        code, output = forked("train", f"hydra.run.dir={directory}", *SMALL, "test=false", *overrides, *fsdp2)
        assert code == 0, output[-3000:]
        return directory / "checkpoints"

    save_resolved(composed(whole[0]), whole[0])
    folders, files = sharded(tmp_path / "sharded", "export=false"), whole[0] / "checkpoints"
    assert (folders / "iteration-000002.ckpt").is_dir()
    resumed = trained(tmp_path / "one", resume=folders / "iteration-000002.ckpt")
    assert_equal(weights_of(resumed), whole[1])
    found = unsharded(
        sharded(tmp_path / "from_file", f"resume={files / 'iteration-000002.ckpt'}") / "iteration-000003.ckpt"
    )
    expected = torch.load(files / "iteration-000003.ckpt", weights_only=True)
    assert found.keys() == expected.keys()
    ours, theirs = found["optimizer_states"][0], expected["optimizer_states"][0]
    assert json.dumps(ours["param_groups"]) == json.dumps(theirs["param_groups"]), "but for tuples"
    assert ours["state"].keys() == theirs["state"].keys()
    pairs = [(found["state_dict"], expected["state_dict"])]
    for part, other in [
        *pairs,
        *((ours["state"][number], theirs["state"][number]) for number in theirs["state"]),
    ]:
        assert part.keys() == other.keys()
        assert_equal(part, other)
    run = run_of(tmp_path / "evaluated")
    evaluate(run.module, run.datamodule, run.trainer, checkpoint=folders / "iteration-000003.ckpt")
    assert_equal(weights_of(run), whole[1])


AHEAD = [
    "rollout.ahead=1", "iterations=5", "callbacks.checkpoint.every=2",
    "+rollout.dynamic_sampling={_target_: tagrpo.rollouts.dynamic_sampling.DynamicSampling, max_draws: 1}",
]  # fmt: skip


@pytest.fixture(scope="module")
def whole_ahead(tmp_path_factory):
    """An undisturbed run that samples one batch ahead, over the end of an epoch."""
    directory = tmp_path_factory.mktemp("whole_ahead")
    return directory, weights_of(trained(directory, *AHEAD))


def test_only_the_first_batch_of_a_run_that_samples_ahead_is_of_the_newest_weights(whole_ahead):
    staleness = logged(whole_ahead[0])["rollout/staleness"].dropna().astype(float)
    assert staleness.iloc[0] == 0
    assert staleness.iloc[1:].gt(0).all()


@pytest.mark.parametrize(
    "at", [pytest.param(3, marks=pytest.mark.runs), pytest.param(4, marks=pytest.mark.slow)]
)
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
    resumed = trained(tmp_path, *AHEAD, resume="auto")
    assert_equal(weights_of(resumed), whole_ahead[1])
    pd.testing.assert_frame_equal(
        logged(tmp_path).reset_index(drop=True),
        logged(whole_ahead[0]).reset_index(drop=True),
        check_exact=True,
    )
    assert (tmp_path / "ledger.json").read_text() == (whole_ahead[0] / "ledger.json").read_text()


@pytest.mark.runs
def test_tensorboard_forgets_what_came_after_the_checkpoint(tmp_path):
    trained(tmp_path, "callbacks.checkpoint.keep=null")
    trained(tmp_path, resume=tmp_path / "checkpoints" / "iteration-000001.ckpt")
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [0, 1, 2]


@pytest.mark.runs
def test_tensorboard_shows_each_step_once_where_a_run_ended_before_its_first_checkpoint(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(PolicyModule, "training_step", failing(PolicyModule.training_step, [], at=2))
    with pytest.raises(Broken):
        trained(tmp_path, "callbacks.checkpoint.every=10")
    trained(tmp_path, resume="auto")
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [0, 1, 2]


def test_every_and_keep_are_at_least_one():
    with pytest.raises(ValueError, match="checkpoint.every"):
        Checkpointer(every=0)
    with pytest.raises(ValueError, match="checkpoint.keep"):
        Checkpointer(keep=0)


@pytest.mark.runs
def test_checkpoints_at_fractions_of_training_are_kept_also_by_a_run_that_is_resumed(tmp_path):
    options = ["callbacks.checkpoint.every=10", "callbacks.checkpoint.keep=1", "trainer.limit_val_batches=0"]
    options.append("callbacks.checkpoint.fractions=[0.25,0.5]")
    trained(tmp_path / "whole", "iterations=8", *options)
    assert names(tmp_path / "whole") == [f"iteration-{number:06d}.ckpt" for number in (2, 4, 8)]
    trained(tmp_path / "run", "iterations=5", *options)
    assert names(tmp_path / "run") == [f"iteration-{number:06d}.ckpt" for number in (1, 2, 5)]
    # Of the longer run they are two and four: the first was there, the third is none any more, the fourth is gone.
    trained(tmp_path / "run", "iterations=8", *options, resume="auto")
    assert names(tmp_path / "run") == [f"iteration-{number:06d}.ckpt" for number in (2, 8)]
    trained(tmp_path / "run", "iterations=8", *options, resume="auto")
    assert names(tmp_path / "run") == [f"iteration-{number:06d}.ckpt" for number in (2, 8)], (
        "nothing left to train"
    )


@pytest.mark.parametrize("fraction", [0, 1, -0.5, 25])
def test_fractions_are_between_zero_and_one(fraction):
    with pytest.raises(ValueError, match=r"checkpoint.fractions"):
        Checkpointer(fractions=[0.5, fraction])


@pytest.mark.parametrize("under_way", [False, True])
def test_the_state_before_a_batch_is_kept_unless_it_would_have_to_be_waited_for(under_way):
    following = SimpleNamespace(under_way=under_way)
    callback = RolloutCallback(
        lambda **_: SimpleNamespace(following=following, state_dict=lambda: {"iteration": 1})
    )
    checkpointer = Checkpointer()
    checkpointer._done = 1
    trainer = SimpleNamespace(
        callbacks=[callback], datamodule=None, lightning_module=None, max_steps=-1, max_epochs=-1
    )
    checkpointer.on_train_batch_start(trainer)
    kept = {"callbacks": {callback.state_key: {"iteration": 1}}}
    assert checkpointer._before == (None if under_way else kept)
