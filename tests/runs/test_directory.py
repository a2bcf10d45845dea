"""What a run directory lets in: one process, one run, and settings that fit what has been learned."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_module
from hydra.utils import get_object
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from tagrpo.cli import train
from tagrpo.runs.checkpoints import AtomicCheckpointIO
from tagrpo.runs.directory import (
    FILES,
    FOLDERS,
    admit,
    begin,
    changes,
    check_kinds,
    checkpoint_name,
    flat,
    held,
    iterations_logged,
    may_change,
    note_changes,
    read_config,
    shapes_learning,
    wandb_run_id,
    without_copies,
)

SETTINGS = {
    "seed": 0, "iterations": 4, "resume": None, "name": "a",
    "optimizer": {"lr": 1e-4, "weight_decay": 0.0},
    "policy": {"mini_batches": 2},
    "data": {"seed": 0, "batch_size": 8, "train": {"path": "/old/place/math.jsonl", "dataset": "math"}},
    "rollout": {"sampling": {"max_new_tokens": 12}, "evaluation_sampling": {"max_new_tokens": 12}},
    "template": {"instruction": "Answer as a/b."},
    "trainer": {"devices": 1, "precision": None, "default_root_dir": "/old/place"},
}  # fmt: skip


def settings(**changed):
    """The settings, with values by dotted name, `__` for the dot."""
    cfg = OmegaConf.create(SETTINGS)
    for name, value in changed.items():
        OmegaConf.update(cfg, name.replace("__", "."), value)
    return cfg


def a_run_in(directory: Path) -> Path:
    AtomicCheckpointIO().save_checkpoint({"state_dict": {}}, directory / "checkpoints" / checkpoint_name(2))
    (directory / "config.yaml").write_text(OmegaConf.to_yaml(settings()))
    (directory / "metrics.csv").write_text("step\n0\n")
    return directory


def test_a_second_process_is_kept_out_until_the_first_has_died(tmp_path):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        with held(tmp_path):
            os.write(write, b"x")
            signal.pause()
    os.read(read, 1)
    try:
        with (
            pytest.raises(RuntimeError, match=rf"{child}.*`name`"),
            held(tmp_path),
        ):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with held(tmp_path):
        assert str(os.getpid()) in (tmp_path / ".lock").read_text()
    with held(tmp_path):
        pass


@pytest.mark.parametrize("name", [*FOLDERS, *FILES])
@pytest.mark.parametrize("stranger", ["other kind", "link to itself", "link to nothing", "pipe"])
def test_what_is_not_of_the_kind_that_a_run_writes_is_refused_by_its_name(name, stranger, tmp_path):
    path = tmp_path / name
    if stranger == "pipe":
        os.mkfifo(path)
    elif stranger.startswith("link"):
        path.symlink_to(path.name if stranger == "link to itself" else "nowhere")
    elif name in FOLDERS:
        path.touch()
    else:
        path.mkdir()
    for resume in (None, "auto"):
        with pytest.raises(FileExistsError, match=re.escape(str(path))):
            admit(settings(resume=resume), tmp_path)


def test_links_to_folders_and_files_of_the_right_kind_are_taken(tmp_path):
    directory, elsewhere = tmp_path / "run", tmp_path / "disk"
    directory.mkdir()
    for name in FOLDERS:
        (elsewhere / name).mkdir(parents=True)
        (directory / name).symlink_to(elsewhere / name)
    check_kinds(directory)


def test_a_new_run_is_refused_where_another_has_left_results(tmp_path):
    for number, name in enumerate(("metrics.csv", "rollouts", "test.json")):
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / "config.yaml").touch()
        admit(settings(), directory)  # nothing has come of that attempt
        if name in FOLDERS:
            (directory / name).mkdir()
        else:
            (directory / name).touch()
        with pytest.raises(FileExistsError, match="resume=auto.*name=…"):
            admit(settings(), directory)
        admit(settings(resume="auto"), directory)  # it was killed before its first checkpoint
        (directory / "finished").touch()
        with pytest.raises(FileExistsError, match="name=…"):
            admit(settings(resume="auto"), directory)
        assert (directory / "finished").exists()
    run = a_run_in(tmp_path / "run")
    (run / "metrics.csv").unlink()
    with pytest.raises(FileExistsError, match="resume=auto"):
        admit(settings(), run)


def test_a_checkpoint_of_elsewhere_is_for_an_unused_directory(tmp_path):
    source = str(a_run_in(tmp_path / "source") / "checkpoints" / checkpoint_name(2))
    admit(settings(resume=source), tmp_path / "new")
    admit(settings(resume=source), tmp_path / "source")
    with pytest.raises(FileExistsError):
        admit(settings(resume=source), a_run_in(tmp_path / "other"))
    with pytest.raises(ValueError, match="seed: 0 then, 1 now"):
        admit(settings(resume=source, seed=1), tmp_path / "new")


def test_what_may_not_change_is_refused_by_name_with_both_values(tmp_path):
    run = a_run_in(tmp_path)
    cfg = settings(
        resume="auto", policy__mini_batches=4, data__batch_size=16, optimizer__lr=1e-3, iterations=9
    )
    with pytest.raises(ValueError, match="shape what it") as refused:
        admit(cfg, run)
    lines = [line.strip() for line in str(refused.value).splitlines()[1:-1]]
    assert lines == ["data.batch_size: 8 then, 16 now", "policy.mini_batches: 2 then, 4 now"]
    for name, value in [("trainer__precision", "16-true"), ("data__train__dataset", "gsm8k")]:
        with pytest.raises(ValueError, match=name.replace("__", r"\.")):
            admit(settings(resume="auto", **{name: value}), run)
    with pytest.raises(ValueError, match="seed: 0 then, 1 now"):
        admit(settings(resume="auto", seed=1, data__seed=1), run)


def test_a_forbidden_change_is_not_hidden_by_a_permitted_one_with_the_same_values(tmp_path):
    run = a_run_in(tmp_path)
    both = {"rollout__sampling__max_new_tokens": 6, "rollout__evaluation_sampling__max_new_tokens": 6}
    with pytest.raises(ValueError, match=r"rollout.sampling.max_new_tokens: 12 then, 6 now") as refused:
        admit(settings(resume="auto", **both), run)
    assert "evaluation_sampling" not in str(refused.value)
    admit(settings(resume="auto", rollout__evaluation_sampling__max_new_tokens=6), run)


def test_a_text_with_a_slash_is_no_path(tmp_path):
    run = a_run_in(tmp_path)
    with pytest.raises(ValueError, match=r"template.instruction.*a/b.*a/b"):
        admit(settings(resume="auto", template__instruction="Prove a/b."), run)


@pytest.mark.parametrize(
    "overrides",
    [
        ["experiment=ta_grpo"],
        ["experiment=greso", "scale=paper", "data=math", "lora=default"],
        [
            "experiment=prompt_augmentation",
            "data=countdown",
            "curriculum=skip_uniform",
            "rollout=vllm_server",
        ],
    ],
    ids=" ".join,
)
def test_what_follows_a_setting_that_may_change_may_change_too(overrides):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose("train", overrides)
    written = flat(OmegaConf.to_container(cfg, resolve=False))
    for name, value in written.items():
        for reference in re.findall(r"\$\{(?:\w+:)?([a-z_]+(?:\.[a-z_]+)*)", str(value)):
            node = OmegaConf.select(cfg, reference)
            below = flat(OmegaConf.to_container(node)) if OmegaConf.is_config(node) else {"": None}
            for part in below:
                suffix = f".{part}" if part else ""
                assert may_change(name + suffix) or not may_change(reference + suffix), (
                    name + suffix,
                    reference,
                )


def test_without_its_settings_no_run_is_continued(tmp_path):
    run = a_run_in(tmp_path / "run")
    (run / "config.yaml").unlink()
    with pytest.raises(FileNotFoundError, match="settings of the run.*config.yaml"):
        admit(settings(resume="auto", policy__mini_batches=4), run)
    alone = tmp_path / "alone.ckpt"
    (run / "checkpoints" / checkpoint_name(2)).rename(alone)
    with pytest.raises(FileNotFoundError, match="settings of the run.*config.yaml"):
        admit(settings(resume=str(alone)), tmp_path / "new")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("history: [{a: '${wandb_run_id:victim,null}'}]", r"history holds an interpolation"),
        ('name: "$\\x7boc.env:HOME}"', "name holds an interpolation"),
        ("a: &a [x, x]\nb: [*a, *a]", "aliases"),
        ("[1, 2]", "it holds '\\[1, 2\\]'"),
        ("a: [", "can't be read"),
        ("a: !!python/object/apply:os.getpid []", "can't be read"),
        ("[" * 10_000, "can't be read"),
    ],
)
def test_settings_of_strangers_are_plain_text(text, said, tmp_path):
    run = a_run_in(tmp_path)
    (run / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match=said):
        read_config(run / "config.yaml")
    with pytest.raises(ValueError, match=said):
        admit(settings(resume="auto"), run)


def test_what_may_change_is_in_the_history(tmp_path):
    run = a_run_in(tmp_path)
    (run / "finished").touch()
    moved = {"trainer__default_root_dir": "/new", "data__train__path": "/new/math.jsonl"}
    faster = settings(resume="auto", iterations=6, optimizer__lr=1e-3, **moved)
    checkpoint = run / "checkpoints" / checkpoint_name(2)
    note_changes(faster, admit(faster, run), checkpoint)
    assert (run / "finished").exists(), "nothing is written yet"
    begin(run)
    assert not (run / "finished").exists()
    (change,) = faster.history
    assert change.resumed_from == checkpoint_name(2)
    assert OmegaConf.to_container(change.changed) == {
        "iterations": {"then": 4, "now": 6},
        "optimizer.lr": {"then": 1e-4, "now": 1e-3},
        "trainer.default_root_dir": {"then": "/old/place", "now": "/new"},
        "data.train.path": {"then": "/old/place/math.jsonl", "now": "/new/math.jsonl"},
    }
    (run / "config.yaml").write_text(OmegaConf.to_yaml(faster))
    again = OmegaConf.merge(faster, {"history": None})
    del again.history
    note_changes(again, admit(again, run), checkpoint)
    assert again.history == faster.history, "where nothing changes, nothing is added"


@pytest.mark.parametrize("text", ["{", "", "[]", '{"git_commit": 1}', "\xff", "NaN", '{"a": "\\ud800"}'])
def test_a_damaged_provenance_is_a_warning_that_names_the_file(text, tmp_path):
    run = a_run_in(tmp_path)
    (run / "provenance.json").write_bytes(text.encode("latin-1"))
    with pytest.warns(UserWarning, match=r"provenance\.json"):
        assert admit(settings(resume="auto", iterations=6), run) == {"iterations": (4, 6)}


@pytest.mark.parametrize(("logged", "refused"), [(0, False), (2, False), (3, True), (20, True)])
def test_a_run_whose_checkpoints_are_gone_does_not_begin_anew(logged, refused, tmp_path):
    """With a checkpoint every two iterations, the row of the third is written after the first checkpoint."""
    rows = "".join(f"0.5,{step}\n" for step in range(logged))
    (tmp_path / "metrics.csv").write_text("rollout/reward,step\n" + rows)
    checkpoint = {"checkpoint": {"_target_": "tagrpo.callbacks.Checkpointer", "every": 2}}
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(settings(callbacks=checkpoint)))
    assert iterations_logged(tmp_path) == logged
    if refused:
        with pytest.raises(FileNotFoundError, match=r"callbacks\.checkpoint\.every was 2"):
            admit(settings(resume="auto"), tmp_path)
    else:
        assert admit(settings(resume="auto"), tmp_path) == {}


@pytest.mark.parametrize("trace", ["rollouts", "ledger.json", "model", "metrics.csv", "checkpoints"])
def test_what_trains_nothing_is_refused_where_a_run_has_trained(trace, tmp_path):
    if trace == "checkpoints":
        AtomicCheckpointIO().save_checkpoint(
            {"state_dict": {}}, tmp_path / "checkpoints" / checkpoint_name(2)
        )
    elif trace in FOLDERS:
        (tmp_path / trace).mkdir()
    else:
        (tmp_path / trace).write_text("rollout/reward,step\n0.5,0\n")
    for resume in (None, "auto"):
        with pytest.raises(FileExistsError, match=rf"iterations=0.*{trace}"):
            admit(settings(iterations=0, resume=resume), tmp_path)


def test_what_only_evaluates_may_go_on_where_it_was_killed(tmp_path):
    (tmp_path / "metrics.csv").write_text("pass@k/test/1,step\n0.5,0\n")
    admit(settings(iterations=0, resume="auto"), tmp_path)
    with pytest.raises(ValueError, match="iterations above 0"):
        admit(settings(iterations=0, resume=str(tmp_path)), tmp_path / "new")


def test_every_callback_of_the_package_says_whether_it_shapes_learning():
    shaping = set()
    for group in ("default", "exact_pass_at_k", "exact_zero_gradient"):
        with initialize_config_module("tagrpo.configs", version_base="1.3"):
            cfg = compose("train", [f"callbacks={group}", "experiment=skywork_or1"])
        for name, part in cfg.callbacks.items():
            changed = f"callbacks.{name}.x"
            there = {"callbacks": {name: {"_target_": part._target_, "x": 1}}}
            assert isinstance(get_object(part._target_).shapes_learning, bool), name
            if shapes_learning(changed, there, there):
                shaping.add(str(name))
    assert shaping == {"adaptive_entropy"}


@pytest.mark.parametrize(
    ("target", "shapes"),
    [
        ("lightning.pytorch.callbacks.LearningRateMonitor", False),
        ("lightning.pytorch.callbacks.RichProgressBar", False),
        ("lightning.pytorch.callbacks.EarlyStopping", False),
        ("lightning.pytorch.callbacks.GradientAccumulationScheduler", True),
        ("lightning.pytorch.callbacks.LearningRateFinder", True),
        ("lightning.pytorch.callbacks.WeightAveraging", True),
        ("lightning.pytorch.callbacks.BackboneFinetuning", True),
        ("lightning.pytorch.Callback", True),
        ("there.is.no.such.Module", True),
        ("os.getcwd", True),
    ],
)
def test_callbacks_of_others_are_taken_to_shape_learning_unless_they_are_known_to_observe(target, shapes):
    own = {"callbacks": {"mine": {"_target_": target, "x": 1}}}
    for then, now in ((own, own), ({}, own), ({"callbacks": None}, own)):
        assert shapes_learning("callbacks.mine.x", then, now) == shapes
    assert not shapes_learning("logger.mine.x", own, own)


def test_nothing_is_imported_that_only_the_settings_of_a_stranger_name(tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    theirs = {"callbacks": {"mine": {"_target_": "trap.Callback"}}}
    assert shapes_learning("callbacks.mine._target_", theirs, {"callbacks": {}})


def test_the_lock_of_a_directory_is_left_as_it_was_found(tmp_path):
    (tmp_path / ".lock").write_text("process 1 on a machine that went away\n")
    with held(tmp_path):
        assert str(os.getpid()) in (tmp_path / ".lock").read_text()
    assert (tmp_path / ".lock").read_text() == "process 1 on a machine that went away\n"


def test_a_resumed_run_may_be_averaged_over_other_groups_of_splits(tmp_path):
    admit(settings(resume="auto", averages__all=["test_id", "test_size"]), a_run_in(tmp_path))


def test_settings_that_were_added_or_removed_are_changes():
    assert changes({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}) == {"a.c": (None, 2)}
    assert changes({"a": {"b": {}}, "d": [1, 2]}, {"a": {"b": {"c": 1}}, "d": [1, 2]})["a.b.c"] == (None, 1)
    assert flat({"a": {"b": [1], "c": {}}}) == {"a.b": [1], "a.c": {}}


SMALL = [
    "threads=1", "logger=csv", "callbacks=[checkpoint]", "callbacks.checkpoint.every=1", "data.train.size=8",
    "data.batch_size=2", "data.num_rephrasings=0", "experiment=grpo", "data.samples_per_prompt=2", "test=false",
    "rollout.sampling.max_new_tokens=8", "trainer.limit_val_batches=0", "export=false",
    "+trainer.enable_progress_bar=false", "policy.schedule=constant",
]  # fmt: skip


def test_the_command_is_refused_or_goes_on_with_what_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")

    def command(*overrides):
        monkeypatch.setattr(sys, "argv", ["tagrpo-train", f"hydra.run.dir={tmp_path}", *SMALL, *overrides])
        train.main()

    command("iterations=2")
    assert (tmp_path / "finished").exists()
    files = [tmp_path / "metrics.csv", tmp_path / ".hydra" / "hydra.yaml"]
    before = [file.read_text() for file in files]
    with pytest.raises(FileExistsError, match="resume=auto"):
        command("iterations=2")
    with pytest.raises(ValueError, match=r"data.batch_size: 2 then, 4 now"):
        command("iterations=3", "resume=auto", "data.batch_size=4")
    assert [file.read_text() for file in files] == before, "also what says how to repeat the run"
    command("iterations=3", "resume=auto", "optimizer.lr=7e-3")
    saved = torch.load(tmp_path / "checkpoints" / checkpoint_name(3), weights_only=True)
    (group,) = saved["optimizer_states"][0]["param_groups"]
    assert group["lr"] == group["initial_lr"] == 7e-3
    # What it was made with before.
    made_with = json.loads((tmp_path / "provenance.json").read_text())
    (tmp_path / "provenance.json").write_text(json.dumps(made_with | {"version/torch": "1.0"}))
    command("iterations=3", "resume=auto", "optimizer.lr=7e-3")
    config = OmegaConf.load(tmp_path / "config.yaml")
    assert config.history[1].changed == {"version/torch": {"then": "1.0", "now": made_with["version/torch"]}}
    assert json.loads((tmp_path / "provenance.json").read_text()) == made_with
    assert set(config.history[0].changed) == {"iterations", "optimizer.lr", "trainer.max_steps"}
    assert config.history[0].resumed_from == checkpoint_name(2)


def test_wandb_knows_a_resumed_run_by_its_id(tmp_path):
    first = wandb_run_id(str(tmp_path), None)
    assert not (tmp_path / "wandb_id").exists(), "the command may still be refused"
    begin(tmp_path)
    assert wandb_run_id(str(tmp_path), "auto") == first
    assert wandb_run_id(str(tmp_path), None) != first


NESTED = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["adam", "x y", "/a/data.jsonl"]),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=8,
)
CONFIGS = st.dictionaries(st.sampled_from("abcd"), NESTED, max_size=4)


@given(CONFIGS)
def test_equal_settings_are_no_change_and_flat_names_lead_back(settings):
    assert changes(settings, settings) == {}
    for name, value in flat(settings).items():
        found = settings
        for part in filter(None, name.split(".")):
            found = found[part]
        assert found == value


@given(CONFIGS, CONFIGS)
def test_every_change_has_the_values_of_both_sides_and_none_is_left_out(then, now):
    found, a, b = changes(then, now), flat(then), flat(now)
    assert found == {name: (a.get(name), b.get(name)) for name in a | b if a.get(name) != b.get(name)}
    brief = without_copies(found)
    assert brief.items() <= found.items()
    assert {(name.rpartition(".")[2], repr(found[name])) for name in found} == {
        (name.rpartition(".")[2], repr(brief[name])) for name in brief
    }


def test_a_resumed_run_may_set_what_the_error_of_a_reward_asks_for():
    """A reward outside [0, 1] ends a run whose threshold is null."""
    for setting in ("reward.correct_above", "rollout.verifier.correct_above", "reward.workers"):
        assert may_change(setting)
    for setting in ("reward.target", "reward.weights", "reward.columns.solution"):
        assert not may_change(setting)
