"""Runs from end to end on the embedded task: files, determinism, resume, every experiment."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module

import pandas as pd
import pytest
import torch
from hydra.core.plugins import Plugins
from lightning.pytorch import Callback
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM

from tagrpo.cli.train import objective_of, train
from tagrpo.runs.secrets import save_resolved
from tagrpo.settings.config import build, compose_run
from tagrpo.settings.methods import experiments
from tagrpo.study.evaluate import evaluate
from tests.helpers import in_fork

RESUMED = (
    "ta_grpo_adaptive",
    "exgrpo",
    "clip_cov",
    "outcome_exploration",
    "greso",
    "cog_drift",
    "luffy",
    "skywork_or1",
    "questa",
    "svs",
)
"""Experiments that the tests of resume train for longer."""
STATELESS = ("dgpo", "mathforge", "ucpo", "entropy_shaped", "prorl")
"""Of contrib, without anything that a checkpoint must keep; they are resumed after the first of two iterations."""
RECOMBINED = (
    "entropy_bonus", "grpo_ds", "grpo_matched", "grpo_matched_ds", "pass_at_1", "pass_at_k_bootstrap", "pass_at_k_full",
    "pass_at_k_pooled", "prompt_augmentation_control", "prompt_augmentation_without_format", "psr", "ta_grpo",
    "ta_grpo_ds", "ta_grpo_star", "ta_grpo_v1", "w_reinforce",
)  # fmt: skip
"""Experiments of classes and options that others have too."""
ALWAYS = ("dapo", "pass_at_k")
"""Experiments that `make test` runs, beside that of `SMALL` and one that is resumed; the others `make test-runs`."""


def marks_of(experiment):
    if experiment in RECOMBINED:
        return [pytest.mark.slow]
    return [] if experiment in ALWAYS else [pytest.mark.runs]


EXPERIMENTS = [
    pytest.param(name, marks=marks_of(name)) for name in experiments() if name not in (*RESUMED, *STATELESS)
]
SMALL = [
    "iterations=4", "threads=1", "logger=csv", "callbacks=[zero_gradient,pass_at_k,checkpoint]", "data.train.size=24",
    "data.batch_size=4", "data.samples_per_prompt=4", "data.evaluation_samples=4", "data.evaluation.test_id.size=6",
    "~data.evaluation.test_phrasing", "~data.evaluation.test_size", "loss.kl_coef=0.01", "trainer.val_check_interval=3",
    "callbacks.checkpoint.every=2", "callbacks.checkpoint.keep=null",
    "+trainer.enable_progress_bar=false",
]  # fmt: skip


def run_of(directory, *overrides):
    cfg = compose_run(directory, [*SMALL, *overrides])
    run = build(cfg)
    save_resolved(cfg, directory)
    return run


def trained(directory, *overrides, **options):
    run = run_of(directory, *overrides)
    train(run.module, run.datamodule, run.trainer, export=directory / "model", **options)
    return run


def metrics_of(directory):
    """Everything that was logged but wall times."""
    frame = pd.read_csv(directory / "metrics.csv")
    return frame[[column for column in frame if not column.startswith("seconds/")]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("undisturbed")
    return directory, trained(directory)


def test_a_run_leaves_its_files(undisturbed):
    directory, _ = undisturbed
    ledger = json.loads((directory / "ledger.json").read_text())
    # 4 iterations of 4 questions, each with its original and three rephrasings, sampled 4 times; 2 steps each.
    assert (ledger["iterations"], ledger["prompts"], ledger["rollouts"], ledger["updates"]) == (4, 64, 256, 8)
    rows = metrics_of(directory).dropna(subset=["rollout/reward"])
    assert rows["budget/rollouts"].tolist() == [64, 128, 192, 256]
    assert rows["train/lr"].between(0, 1e-4).all()
    # The reference is the policy itself until the first update.
    assert rows["train/kl"].iloc[0] < rows["train/kl"].iloc[-1]
    assert (rows["rollout/engine_mismatch_max"] < 1e-4).all()
    assert (rows["uniform_reward/pool"] == rows["zero_gradient/percentage"]).all()
    config = OmegaConf.load(directory / "config.yaml")
    assert config.model.load.path == config.model.path
    assert "${" not in (directory / "config.yaml").read_text()
    (split,) = json.loads((directory / "test.json").read_text())["splits"].values()
    assert [question["n"] for question in split["questions"]] == [4] * 6
    assert (directory / "validation.json").exists()


def test_the_exported_folder_holds_the_trained_policy(undisturbed):
    directory, run = undisturbed
    exported = dict(AutoModelForCausalLM.from_pretrained(directory / "model").named_parameters())
    start = dict(
        AutoModelForCausalLM.from_pretrained(run.module.load_model.keywords["path"]).named_parameters()
    )
    moved = 0
    for name, parameter in run.module.full_parameters():
        assert torch.equal(exported[name], parameter)
        moved += not torch.equal(start[name], parameter)
    assert moved == len(start), "every parameter was trained"


def test_the_same_seed_gives_the_same_metrics_bit_for_bit(undisturbed, tmp_path):
    directory, _ = undisturbed
    trained(tmp_path / "same")
    pd.testing.assert_frame_equal(metrics_of(tmp_path / "same"), metrics_of(directory), check_exact=True)
    assert (tmp_path / "same" / "test.json").read_text() == (directory / "test.json").read_text()
    trained(tmp_path / "other", "seed=1", "iterations=1", test=False)
    first, other = (
        metrics_of(folder)["rollout/entropy"].iloc[0] for folder in (directory, tmp_path / "other")
    )
    assert first != other


def test_resuming_in_the_middle_of_an_epoch_changes_nothing(undisturbed, tmp_path):
    directory, whole = undisturbed
    checkpoint = directory / "checkpoints" / "iteration-000002.ckpt"
    resumed = trained(tmp_path, resume=str(checkpoint))
    for (name, a), (_, b) in zip(
        resumed.module.full_parameters(), whole.module.full_parameters(), strict=True
    ):
        assert torch.equal(a, b), name
    expected = metrics_of(directory)
    expected = expected[expected["step"] >= 2].reset_index(drop=True)
    pd.testing.assert_frame_equal(metrics_of(tmp_path)[expected.columns], expected, check_exact=True)
    assert (tmp_path / "ledger.json").read_text() == (directory / "ledger.json").read_text()


def whole_and_resumed(tmp_path, *overrides, iterations=5, at=3):
    """Metrics of a run; checks that one which goes on after `at` of its iterations logs the same, bit for bit."""
    options = [
        f"iterations={iterations}",
        f"callbacks.checkpoint.every={at}",
        "trainer.limit_val_batches=0",
        *overrides,
    ]
    trained(tmp_path / "whole", *options, test=False)
    (checkpoint,) = (tmp_path / "whole" / "checkpoints").glob(f"*{at}.ckpt")
    trained(tmp_path / "resumed", *options, resume=str(checkpoint), test=False)
    whole = metrics_of(tmp_path / "whole")
    assert whole["train/grad_norm"].dropna().size == iterations
    assert whole["train/skipped_updates"].dropna().tolist() == [0] * iterations
    rest = whole[whole["step"] >= at].reset_index(drop=True)
    pd.testing.assert_frame_equal(metrics_of(tmp_path / "resumed")[rest.columns], rest, check_exact=True)
    return whole


@pytest.mark.runs
def test_adaptive_rephrasings_go_on_from_the_rates_of_the_checkpoint(tmp_path):
    # Two iterations an epoch; the checkpoint lies in the middle of the second, whose prompts follow from the first.
    expected = whole_and_resumed(tmp_path, "experiment=ta_grpo_adaptive", "data.train.size=8")
    rephrasings = expected["rollout/rephrasings"].dropna()
    assert rephrasings.iloc[:2].tolist() == [3, 3]
    assert rephrasings.iloc[2:].between(0, 3, inclusive="left").all()


@pytest.mark.runs
def test_replay_goes_on_from_the_successes_of_the_checkpoint(tmp_path):
    expected = whole_and_resumed(tmp_path, "experiment=exgrpo", "rollout.replay.start=0")
    assert expected["budget/rollouts"].diff().iloc[3] < expected["budget/rollouts"].iloc[0], (
        "something is replayed"
    )


@pytest.mark.runs
def test_demonstrations_go_on_from_a_checkpoint(tmp_path):
    expected = whole_and_resumed(tmp_path, "experiment=luffy")
    assert expected["demonstrations/correct"].dropna().tolist() == [4.0] * 5, "one to each question"
    assert expected["budget/rollouts"].dropna().tolist() == [12.0 * n for n in range(1, 6)]


@pytest.mark.runs
def test_variations_that_the_policy_writes_go_on_from_a_checkpoint(tmp_path):
    echo = (
        "rollout.reformulator.instruction='{response}'",
        "rollout.reformulator.form='(.+)'",
        "data.batch_size=8",
    )
    expected = whole_and_resumed(
        tmp_path, "experiment=svs", *echo, "callbacks=[rephrasing_success,checkpoint]"
    )
    for kind in ("synthesis", "variation"):
        assert expected[f"kind/{kind}/correct"].dropna().between(0, 1, inclusive="neither").all()
    fewest = expected["budget/rollouts"].dropna().diff().dropna().min()
    assert fewest > 8 * 4, "more than the questions of a batch are asked"


@pytest.mark.runs
def test_an_adaptive_entropy_bonus_goes_on_with_its_coefficient(tmp_path):
    settings = [f"callbacks.adaptive_entropy.{name}" for name in ("target=9.0", "step=0.01", "most=0.035")]
    expected = whole_and_resumed(tmp_path, "experiment=skywork_or1", *settings)
    found = expected["adaptive_entropy/coef"].dropna().tolist()
    assert found == pytest.approx([0.01, 0.02, 0.03, 0.035, 0.035], abs=1e-6)


@pytest.mark.runs
def test_credit_by_lot_and_a_correction_go_on_from_a_checkpoint(tmp_path):
    """Other credit by token has no state and draws nothing."""
    overrides = ["experiment=clip_cov", "credit.share=0.3", "credit.low=-1", "mismatch=token_tis"]
    expected = whole_and_resumed(tmp_path, *overrides)
    assert expected["rollout/mismatch_ess"].dropna().between(0.99, 1.0).all(), (
        "the engine is nearly the trainer"
    )


@pytest.mark.runs
@pytest.mark.parametrize(
    "overrides",
    [
        ("experiment=outcome_exploration",),
        ("experiment=greso", "data.curriculum.step=0.1"),
        ("experiment=cog_drift", "data.curriculum.threshold=0.2"),
        ("experiment=questa",),
    ],
    ids=lambda overrides: overrides[0].split("=")[1],
)
def test_what_is_remembered_of_questions_goes_on_from_the_checkpoint(overrides, tmp_path):
    # Two iterations an epoch at most; the checkpoint lies in the middle of one that hangs on what came before.
    small = ("data.train.size=8", "rollout.sampling.max_new_tokens=12", "optimizer.lr=1e-3")
    whole_and_resumed(tmp_path, *overrides, *small)
    states = [
        torch.load(tmp_path / name / "checkpoints" / "iteration-000005.ckpt", weights_only=True)
        for name in ("whole", "resumed")
    ]
    memories = [state["callbacks"]["RolloutCallback"]["memory"] for state in states]
    assert memories[0] == memories[1]
    assert sum(samples for samples, *_ in memories[0].values()) > 0
    assert max(len(visits) for _, _, _, visits, _ in memories[0].values()) > 1


class Spy(Callback):
    """Keeps the rollouts of every training batch."""

    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append(batch.rollouts)


def test_success_format_and_length_of_each_template_are_in_the_metrics(tmp_path):
    run = run_of(
        tmp_path,
        "experiment=prompt_augmentation",
        "callbacks=[rephrasing_success,checkpoint]",
        "iterations=2",
    )
    run.trainer.callbacks.append(spy := Spy())
    train(run.module, run.datamodule, run.trainer, test=False)
    rows = metrics_of(tmp_path).dropna(subset=["rollout/reward"])
    names = set()
    for rollouts, (_, row) in zip(spy.seen, rows.iterrows(), strict=True):
        by_template = {}
        for response, prompt in enumerate(rollouts.prompt.tolist()):
            text = rollouts.text[response]
            name = rollouts.prompts[prompt].template
            worked = text.count("####") == 1 and not text.startswith("####")
            earned = {"plain": 1.0, "steps": float(worked)}.get(name, float(text.count("####") == 1))
            found = (float(rollouts.correct[response]), float(len(rollouts.token_ids[response])), earned)
            by_template.setdefault(name, []).append(found)
        names |= by_template.keys()
        for name, values in by_template.items():
            columns = [f"template/{name}/{key}" for key in ("correct", "length", "reward_term/format")]
            means = [sum(value) / len(value) for value in zip(*values, strict=True)]
            assert row[columns].tolist() == pytest.approx(means, abs=1e-6)
        earned = [value[2] for values in by_template.values() for value in values]
        assert row["rollout/reward_term/format"] == pytest.approx(sum(earned) / len(earned), abs=1e-6)
        assert row["rollout/reward"] == pytest.approx(
            row["rollout/correct"] + row["rollout/reward_term/format"]
        )
    assert len(names) > 1


def test_evaluating_a_model_folder_gives_what_the_run_reported(undisturbed, tmp_path):
    directory, _ = undisturbed
    run = run_of(tmp_path, "model=pretrained", f"model.path={directory / 'model'}", "iterations=0")
    metrics = evaluate(run.module, run.datamodule, run.trainer)
    reported = json.loads((directory / "test.json").read_text())["splits"]["test_id"]["pass_at_k"]
    assert {k: metrics[f"pass@k/test_id/{k}"] for k in reported} == pytest.approx(
        {k: v["value"] for k, v in reported.items()}
    )


@pytest.mark.runs
@pytest.mark.parametrize("experiment", STATELESS)
def test_an_experiment_without_a_state_goes_on_from_a_checkpoint(experiment, tmp_path):
    small = ("data.samples_per_prompt=5", "rollout.sampling.max_new_tokens=12")
    whole_and_resumed(tmp_path, f"experiment={experiment}", *small, iterations=2, at=1)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_takes_two_optimizer_steps(experiment, tmp_path):
    small = [
        "iterations=1",
        "policy.mini_batches=2",
        "data.samples_per_prompt=5",
        "rollout.sampling.max_new_tokens=12",
        "trainer.limit_val_batches=0",
    ]
    run = run_of(tmp_path, f"experiment={experiment}", *small)
    train(run.module, run.datamodule, run.trainer, test=False)
    assert run.trainer.global_step == 2
    rows = metrics_of(tmp_path)
    assert rows["train/skipped_updates"].tolist() == [0]
    assert rows["train/grad_norm"].notna().all()


SWEEPER = """
import json
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

class Noting(BasicSweeper):
    '''Notes what each run returns, as a sweeper with an objective gets it.'''

    def sweep(self, arguments):
        (returned,) = super().sweep(arguments)
        with open(self.config.hydra.sweep.dir + "/returned.json", "w") as file:
            json.dump([[job.overrides[0], job.return_value] for job in returned], file)
"""


@pytest.mark.runs
def test_a_sweeper_gets_the_objective_of_every_run(tmp_path):
    (tmp_path / "hydra_plugins").mkdir()
    (tmp_path / "hydra_plugins" / "noting.py").write_text(SWEEPER)
    small = [override for override in SMALL if not override.startswith("iterations")]
    options = [
        "-m", f"hydra.sweep.dir={tmp_path}", "hydra.sweep.subdir=${optimizer.lr}", "optimizer.lr=1e-3,1e-5",
        "hydra.sweeper._target_=hydra_plugins.noting.Noting", *small, "iterations=2", "test=false", "export=false",
        "objective=rollout/reward",
    ]  # fmt: skip

    def sweep():
        os.chdir(tmp_path)
        sys.path.insert(0, str(tmp_path))
        Plugins.instance().register(import_module("hydra_plugins.noting").Noting)
        import_module("tagrpo.cli.train").main()

    code, said = in_fork(sweep, *options)
    assert code == 0, said[-3000:]
    assert said.count("train: ") == 2, "each of two runs says each line once"
    returned = json.loads((tmp_path / "returned.json").read_text())
    assert [override for override, _ in returned] == ["optimizer.lr=0.001", "optimizer.lr=1e-05"]
    for override, value in returned:
        folder = tmp_path / override.removeprefix("optimizer.lr=")
        assert value == pytest.approx(metrics_of(folder)["rollout/reward"].dropna().iloc[-1])


def test_an_objective_that_is_not_logged_is_an_error_that_names_what_is():
    metrics = {"rollout/reward": 0.5, "pass@k/test_id/1": 0.25}
    assert objective_of(metrics, "pass@k/test_id/1") == 0.25
    assert objective_of(metrics, None) is None
    with pytest.raises(ValueError, match="'reward'.*pass@k/test_id/1.*rollout/reward"):
        objective_of(metrics, "reward")
