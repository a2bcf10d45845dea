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
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from tagrpo.cli import train
from tagrpo.runs.checkpoints import AtomicCheckpointIO
from tagrpo.runs.directory import (
    begin,
    changes,
    flat,
    held,
    may_change,
    name_of,
    read_config,
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
    AtomicCheckpointIO().save_checkpoint({"state_dict": {}}, directory / "checkpoints" / name_of(2))
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
        with pytest.raises(RuntimeError, match=rf"another process .*process {child} on .*`name`"), held(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with held(tmp_path):
        assert str(os.getpid()) in (tmp_path / ".lock").read_text()
    with held(tmp_path):
        pass


def test_a_new_run_is_refused_where_another_has_left_results(tmp_path):
    for number, name in enumerate(("metrics.csv", "rollouts", "test.json")):
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / "config.yaml").touch()
        begin(settings(), directory)  # nothing has come of that attempt
        (directory / name).touch()
        with pytest.raises(FileExistsError, match="resume=auto.*name=…"):
            begin(settings(), directory)
        begin(settings(resume="auto"), directory)  # it was killed before its first checkpoint
        (directory / "finished").touch()
        with pytest.raises(FileExistsError, match="has finished, but there is none.*name=…"):
            begin(settings(resume="auto"), directory)
        assert (directory / "finished").exists()
    run = a_run_in(tmp_path / "run")
    (run / "metrics.csv").unlink()
    with pytest.raises(FileExistsError, match="resume=auto"):
        begin(settings(), run)


def test_a_checkpoint_of_elsewhere_is_for_an_unused_directory(tmp_path):
    source = str(a_run_in(tmp_path / "source") / "checkpoints" / name_of(2))
    begin(settings(resume=source), tmp_path / "new")
    begin(settings(resume=source), tmp_path / "source")
    with pytest.raises(FileExistsError):
        begin(settings(resume=source), a_run_in(tmp_path / "other"))
    with pytest.raises(ValueError, match="seed: 0 then, 1 now"):
        begin(settings(resume=source, seed=1), tmp_path / "new")


def test_what_may_not_change_is_refused_by_name_with_both_values(tmp_path):
    run = a_run_in(tmp_path)
    cfg = settings(resume="auto", policy__mini_batches=4, data__batch_size=16, optimizer__lr=1e-3, iterations=9)
    with pytest.raises(ValueError, match="that shape what it learns") as refused:
        begin(cfg, run)
    lines = [line.strip() for line in str(refused.value).splitlines()[1:-1]]
    assert lines == ["data.batch_size: 8 then, 16 now", "policy.mini_batches: 2 then, 4 now"]
    for name, value in [("trainer__precision", "16-true"), ("data__train__dataset", "gsm8k")]:
        with pytest.raises(ValueError, match=name.replace("__", r"\.")):
            begin(settings(resume="auto", **{name: value}), run)
    with pytest.raises(ValueError, match="seed: 0 then, 1 now"):
        begin(settings(resume="auto", seed=1, data__seed=1), run)


def test_a_forbidden_change_is_not_hidden_by_a_permitted_one_with_the_same_values(tmp_path):
    run = a_run_in(tmp_path)
    both = {"rollout__sampling__max_new_tokens": 6, "rollout__evaluation_sampling__max_new_tokens": 6}
    with pytest.raises(ValueError, match=r"rollout.sampling.max_new_tokens: 12 then, 6 now") as refused:
        begin(settings(resume="auto", **both), run)
    assert "evaluation_sampling" not in str(refused.value)
    begin(settings(resume="auto", rollout__evaluation_sampling__max_new_tokens=6), run)


def test_a_text_with_a_slash_is_no_path(tmp_path):
    run = a_run_in(tmp_path)
    with pytest.raises(ValueError, match=r"template.instruction: Answer as a/b. then, Prove a/b. now"):
        begin(settings(resume="auto", template__instruction="Prove a/b."), run)


@pytest.mark.parametrize(
    "overrides",
    [
        ["experiment=ta_grpo"],
        ["experiment=greso", "scale=paper", "data=math", "lora=default"],
        ["experiment=prompt_augmentation", "data=countdown", "curriculum=skip_uniform", "rollout=vllm_server"],
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
                assert may_change(name + suffix) or not may_change(reference + suffix), (name + suffix, reference)


def test_without_its_settings_no_run_is_continued(tmp_path):
    run = a_run_in(tmp_path / "run")
    (run / "config.yaml").unlink()
    with pytest.raises(FileNotFoundError, match="settings of the run.*config.yaml"):
        begin(settings(resume="auto", policy__mini_batches=4), run)
    alone = tmp_path / "alone.ckpt"
    (run / "checkpoints" / name_of(2)).rename(alone)
    with pytest.raises(FileNotFoundError, match="settings of the run.*config.yaml"):
        begin(settings(resume=str(alone)), tmp_path / "new")


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
        begin(settings(resume="auto"), run)


def test_what_may_change_is_in_the_history(tmp_path):
    run = a_run_in(tmp_path)
    (run / "finished").touch()
    moved = {"trainer__default_root_dir": "/new", "data__train__path": "/new/math.jsonl"}
    faster = settings(resume="auto", iterations=6, optimizer__lr=1e-3, **moved)
    begin(faster, run)
    assert not (run / "finished").exists()
    (change,) = faster.history
    assert change.resumed_from == name_of(2)
    assert OmegaConf.to_container(change.changed) == {
        "iterations": {"then": 4, "now": 6},
        "optimizer.lr": {"then": 1e-4, "now": 1e-3},
        "trainer.default_root_dir": {"then": "/old/place", "now": "/new"},
        "data.train.path": {"then": "/old/place/math.jsonl", "now": "/new/math.jsonl"},
    }
    (run / "config.yaml").write_text(OmegaConf.to_yaml(faster))
    again = OmegaConf.merge(faster, {"history": None})
    del again.history
    begin(again, run)
    assert again.history == faster.history, "where nothing changes, nothing is added"


def test_a_resumed_run_may_be_averaged_over_other_groups_of_splits(tmp_path):
    begin(settings(resume="auto", averages__all=["test_id", "test_size"]), a_run_in(tmp_path))


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
    saved = torch.load(tmp_path / "checkpoints" / name_of(3), weights_only=True)
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
    assert config.history[0].resumed_from == name_of(2)


def test_wandb_knows_a_resumed_run_by_its_id(tmp_path):
    first = wandb_run_id(str(tmp_path), None)
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
