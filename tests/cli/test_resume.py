"""A resume checks everything before it writes, and no command that trains nothing replaces the results of a run."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from tagrpo.cli.resume import check_resume
from tagrpo.runs.checkpoints import content_of
from tagrpo.runs.directory import checkpoint_name
from tagrpo.settings.checks import read_questions
from tagrpo.settings.config import build, compose_run
from tagrpo.starter import starter_path
from tests.helpers import forked

SMALL = [
    "experiment=skywork_or1", "threads=1", "callbacks.checkpoint.every=1", "callbacks.checkpoint.keep=2",
    "callbacks=[pass_at_k,recorder,throughput,checkpoint]", "data.train.size=8", "data.batch_size=2",
    "data.num_rephrasings=0", "data.samples_per_prompt=2", "rollout.sampling.max_new_tokens=8",
    "rollout.evaluation_sampling.max_new_tokens=8", "data.evaluation_samples=2", "trainer.limit_val_batches=0",
    "policy.schedule=constant", "data.evaluation.test_id.size=2", "~data.evaluation.test_phrasing",
    "~data.evaluation.test_size", "+trainer.enable_progress_bar=false", "callbacks.pass_at_k.ks=[1,2]",
]  # fmt: skip
MONITOR = """
from lightning.pytorch import Callback

class Undeclared(Callback):
    pass

class Observes(Callback):
    shapes_learning = False

class Shapes(Callback):
    shapes_learning = True
"""


def tree(directory: Path) -> dict[str, str]:
    """Path of each file and folder below a directory → digest of the file's content."""
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else ""
        for path in sorted(directory.rglob("*"))
    }


def train(folder: Path, *overrides: str) -> tuple[int, str]:
    return forked(
        "train", "hydra.run.dir=run", f"model.path={folder / 'policy'}", *SMALL, *overrides, folder=folder
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with the policy `policy` and the run `run` of four iterations that began with it."""
    folder = tmp_path_factory.mktemp("trained")
    shutil.copytree(starter_path(), folder / "policy", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    code, said = train(folder, "iterations=4")
    assert code == 0, said
    return folder


@pytest.fixture
def copied(trained, tmp_path) -> Path:
    """A copy of that folder. The policy is the same folder, since its path is one of the settings."""
    (tmp_path / "own.py").write_text(MONITOR)
    shutil.copytree(trained / "run", tmp_path / "run")
    shutil.copytree(trained / "policy", tmp_path / "policy")
    return tmp_path


def other_weights(folder: Path) -> None:
    path = folder / "policy" / "model.safetensors"
    tensors = load_file(path)
    name = min(tensors)
    tensors[name] = tensors[name] + 1e-3
    save_file(tensors, path, metadata={"format": "pt"})


def other_tokenizer(folder: Path) -> None:
    path = folder / "policy" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": "{{ messages }}"}))


def damage_all(folder: Path) -> None:
    for path in (folder / "run" / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:-9])


def empty_all(folder: Path) -> None:
    for path in (folder / "run" / "checkpoints").iterdir():
        path.write_bytes(b"")


def lose_all(folder: Path) -> None:
    shutil.rmtree(folder / "run" / "checkpoints")
    (folder / "run" / "finished").unlink()


def code_in_checkpoint(folder: Path) -> None:
    torch.save({"state_dict": {}, "hook": Path.cwd}, folder / "run" / "checkpoints" / checkpoint_name(5))


def other_parameters(folder: Path) -> None:
    newest = folder / "run" / "checkpoints" / checkpoint_name(4)
    content = torch.load(newest, weights_only=True)
    content["state_dict"].popitem()
    torch.save(content, newest)


def other_questions(folder: Path) -> None:
    newest = folder / "run" / "checkpoints" / checkpoint_name(4)
    content = torch.load(newest, weights_only=True)
    content["loops"]["fit_loop"]["state_dict"]["combined_loader"][0]["digest"] = "0123456789abcdef"
    torch.save(content, newest)


def changed(*keys: str, value: object = None) -> Callable[[Path], None]:
    """Return a damage that sets the value at nested keys of the newest checkpoint, or deletes it if it is `DELETED`."""

    def damage(folder: Path) -> None:
        newest = folder / "run" / "checkpoints" / checkpoint_name(4)
        content = torch.load(newest, weights_only=True)
        place = content
        for key in keys[:-1]:
            place = place[key]
        if value is DELETED:
            del place[keys[-1]]
        else:
            place[keys[-1]] = value
        torch.save(content, newest)

    damage.__name__ = f"{'.'.join(keys)}={value!r}"
    return damage


def integer_weights(folder: Path) -> None:
    newest = folder / "run" / "checkpoints" / checkpoint_name(4)
    content = torch.load(newest, weights_only=True)
    content["state_dict"] = {name: tensor.long() for name, tensor in content["state_dict"].items()}
    torch.save(content, newest)


def moments_of(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    """Return a damage that changes the moments of one parameter in the newest checkpoint."""

    def damage(folder: Path) -> None:
        newest = folder / "run" / "checkpoints" / checkpoint_name(4)
        content = torch.load(newest, weights_only=True)
        entries = content["optimizer_states"][0]["state"][3]
        entries["exp_avg"] = change(entries["exp_avg"])
        torch.save(content, newest)

    damage.__name__ = "moments"
    return damage


def no_dictionary(folder: Path) -> None:
    torch.save([1], folder / "run" / "checkpoints" / checkpoint_name(4))


def file_for_folder(folder: Path) -> None:
    shutil.rmtree(folder / "run" / "rollouts")
    (folder / "run" / "rollouts").touch()


def no_settings(folder: Path) -> None:
    (folder / "run" / "config.yaml").unlink()


def broken_settings(folder: Path) -> None:
    (folder / "run" / "config.yaml").write_text("a: [")


def broken_log(folder: Path) -> None:
    (folder / "run" / "metrics.csv").write_bytes(b"step\n\xff\xfe\n")


def nothing(folder: Path) -> None: ...


DELETED = "DELETED"
ENTRIES = [
    *((name,) for name in ("epoch", "global_step", "loops", "callbacks", "optimizer_states", "lr_schedulers")),
    ("state_dict",), ("loops", "fit_loop"), ("loops", "fit_loop", "state_dict", "combined_loader"),
    ("callbacks", "RolloutCallback"), ("callbacks", "RolloutCallback", "iteration"), ("callbacks", "Checkpointer"),
    *(("callbacks", "Checkpointer", name) for name in ("iterations", "epoch", "rng", "loggers")),
    ("QuestionDataModule", "tokenizer"), ("loaded",), ("skipped_in_a_row",),
]  # fmt: skip
"""Places of entries that every checkpoint has."""
WRONG_TYPES = [(changed(*entry, value=value), entry[-1]) for entry in ENTRIES for value in (None, 1.5)]
NEEDED = ("optimizer_states", "lr_schedulers", "state_dict", "global_step")
WRONG_TYPES += [(changed(name, value=DELETED), name) for name in NEEDED]
WRONG_TYPES += [
    (changed("callbacks", "RolloutCallback", value=DELETED), "RolloutCallback"),
    (changed("callbacks", "Checkpointer", value=DELETED), "Checkpointer"),
    (changed("callbacks", value=DELETED), r"callbacks.Checkpointer"),
    (changed("callbacks", "Checkpointer", "loggers", value="x"), "loggers"),
    *((moments_of(partial(torch.full_like, fill_value=value)), "exp_avg") for value in (math.nan, math.inf)),
    *((moments_of(change), "exp_avg") for change in (torch.flatten, lambda moments: moments[:0])),
    (changed("lr_schedulers", value=[]), "lr_schedulers"),
    (changed("optimizer_states", value=[3]), "optimizer_states"),
    (integer_weights, "int64"),
    (no_dictionary, "checkpoint"),
]
"""Damages of the newest checkpoint that its checksums do not show, and what the message names."""


REFUSALS = [
    *((damage, ["iterations=5", "resume=auto"], said) for damage, said in WRONG_TYPES[::12]),
    (file_for_folder, ["iterations=5", "resume=auto"], r"rollouts"),
    (nothing, ["iterations=4"], r"resume=auto"),
    (nothing, ["iterations=5", "resume=auto", "seed=1"], r"seed: 0 then, 1 now"),
    (nothing, ["iterations=5", "resume=auto", "loss.clip_low=0.1"], r"loss.clip_low"),
    (
        nothing,
        ["iterations=5", "resume=auto", "callbacks.adaptive_entropy.least=5e-3"],
        r"adaptive_entropy.least",
    ),
    (
        nothing,
        ["iterations=5", "resume=auto", "callbacks.adaptive_entropy.target=9"],
        r"adaptive_entropy.target",
    ),
    (nothing, ["iterations=5", "resume=auto", "~callbacks.adaptive_entropy"], r"adaptive_entropy._target_"),
    (nothing, ["iterations=5", "resume=auto", "callbacks.adaptive_entropy=null"], r"adaptive_entropy"),
    (nothing, ["iterations=5", "resume=auto", "+callbacks.mine={_target_: own.Shapes}"], r"callbacks.mine"),
    (
        nothing,
        ["iterations=5", "resume=auto", "+callbacks.mine={_target_: own.Undeclared}"],
        "shapes_learning = False",
    ),
    (
        nothing,
        [
            "iterations=5",
            "resume=auto",
            "+callbacks.mine={_target_: lightning.pytorch.callbacks.StochasticWeightAveraging, swa_lrs: 0.1}",
        ],
        r"callbacks.mine",
    ),
    (nothing, ["iterations=5", "resume=run/checkpoints/iteration-000009.ckpt"], r"Correct resume"),
    (nothing, ["iterations=5", "resume=auto", "trainer.accelerator=nowhere"], r"accelerator"),
    (nothing, ["iterations=5", "resume=auto", "data.evaluation_samples=0"], r"evaluation_samples"),
    (nothing, ["iterations=5", "resume=auto", "callbacks.checkpoint.every=0"], r"checkpoint.every"),
    (nothing, ["iterations=5", "resume=auto", "+trainer.frobnicate=1"], r"frobnicate"),
    (nothing, ["iterations=0", "resume=auto"], r"iterations=0"),
    (nothing, ["iterations=0", "resume=run"], r"iterations=0"),
    (nothing, ["iterations=0"], r"iterations=0"),
    (other_weights, ["iterations=5", "resume=auto"], r"model.path"),
    (other_tokenizer, ["iterations=5", "resume=auto"], r"data.tokenizer"),
    (other_parameters, ["iterations=5", "resume=auto"], r"model.path"),
    (other_questions, ["iterations=5", "resume=auto"], r"data.train and seed"),
    (damage_all, ["iterations=5", "resume=auto"], r"(?s)all 2 are damaged.*000004.ckpt.*000003.ckpt.*name=…"),
    (damage_all, ["iterations=5", "resume=run"], r"(?s)all 2 are damaged"),
    (damage_all, ["iterations=5", "resume=run/checkpoints/iteration-000004.ckpt"], r"complete checkpoint"),
    (empty_all, ["iterations=5", "resume=auto"], r"(?s)all 2 are damaged"),
    (lose_all, ["iterations=5", "resume=auto"], r"callbacks.checkpoint.every was 1"),
    (code_in_checkpoint, ["iterations=6", "resume=auto"], r"(?i)weights.only|could run code|unsupported"),
    (no_settings, ["iterations=5", "resume=auto"], r"config.yaml"),
    (broken_settings, ["iterations=5", "resume=auto"], r"config.yaml"),
    (broken_log, ["iterations=5", "resume=auto"], r"metrics.csv"),
]


@pytest.mark.parametrize(
    ("damage", "overrides", "said"),
    [
        pytest.param(damage, overrides, said, marks=[pytest.mark.runs] if number % 6 else [])
        for number, (damage, overrides, said) in enumerate(REFUSALS)
    ],
    ids=[f"{damage.__name__}-{'-'.join(overrides)}"[:90] for damage, overrides, _ in REFUSALS],
)
def test_a_refused_resume_leaves_every_byte_of_the_run_as_it_was(damage, overrides, said, copied, trained):
    damage(copied)
    settings = copied / "run" / "config.yaml"
    if damage not in (no_settings, broken_settings):  # the copy has a policy of its own
        settings.write_text(settings.read_text().replace(str(trained), str(copied)))
    before = tree(copied / "run")
    code, output = train(copied, *overrides)
    assert code not in (0, None), output
    assert "Traceback" not in output
    assert re.search(said, output), output
    assert tree(copied / "run") == before


@pytest.fixture(scope="module")
def built(trained):
    """The run of `trained`, about to be resumed."""
    policy = f"model.path={trained / 'policy'}"
    cfg = compose_run(trained / "run", [*SMALL, policy, "iterations=5", "resume=auto"])
    run = build(cfg)
    read_questions(cfg, run, trains=True)
    yield run
    run.close()


@pytest.mark.parametrize(("damage", "said"), WRONG_TYPES, ids=[damage.__name__ for damage, _ in WRONG_TYPES])
def test_an_entry_of_a_checkpoint_that_is_missing_or_of_another_type_is_named(damage, said, copied, built):
    damage(copied)
    path = copied / "run" / "checkpoints" / checkpoint_name(4)
    before = tree(copied / "run")
    with pytest.raises(ValueError, match=said):
        check_resume(built, path, content_of(path))
    assert tree(copied / "run") == before


def test_monitors_may_change_over_a_resume_and_a_damaged_provenance_is_a_warning(copied, trained):
    settings = copied / "run" / "config.yaml"
    settings.write_text(settings.read_text().replace(str(trained), str(copied)))
    (copied / "run" / "provenance.json").write_text("{")
    monitors = [
        "+callbacks.mine={_target_: own.Observes}", "~callbacks.recorder", "callbacks.pass_at_k.ks=[1]",
        "+callbacks.rate={_target_: lightning.pytorch.callbacks.DeviceStatsMonitor}",
    ]  # fmt: skip
    code, output = train(copied, "iterations=5", "resume=auto", *monitors)
    assert code == 0, output
    assert json.loads((copied / "run" / "provenance.json").read_text())["version/torch"]
    timed = pd.read_csv(copied / "run" / "metrics.csv").dropna(subset=["seconds/iteration"])
    assert timed["step"].tolist() == [1, 2, 3, 4, 5], (
        "also that of the iteration after which the run had finished"
    )
    history = yaml.safe_load(settings.read_text())["history"]
    assert history[0]["resumed_from"] == checkpoint_name(4)
    assert "callbacks.mine._target_" in history[0]["changed"]
    code, output = train(
        copied, "iterations=6", "resume=auto", *monitors, "callbacks.mine._target_=own.Shapes"
    )
    assert code == 1, output
    assert "callbacks.mine" in output


def test_the_history_names_the_checkpoint_that_was_resumed(copied, trained):
    settings = copied / "run" / "config.yaml"
    settings.write_text(settings.read_text().replace(str(trained), str(copied)))
    newest = copied / "run" / "checkpoints" / checkpoint_name(4)
    newest.write_bytes(newest.read_bytes()[:-9])
    code, output = train(copied, "iterations=5", "resume=auto")
    assert code == 0, output
    assert yaml.safe_load(settings.read_text())["history"][0]["resumed_from"] == checkpoint_name(3)


@pytest.mark.parametrize(
    "iterations", [pytest.param(1, marks=pytest.mark.runs), 2, pytest.param(3, marks=pytest.mark.runs)]
)
def test_a_run_beyond_its_iterations_is_left_as_it_is_and_says_so(iterations, copied, trained):
    settings = copied / "run" / "config.yaml"
    settings.write_text(settings.read_text().replace(str(trained), str(copied)))
    before = tree(copied / "run")
    code, output = train(copied, f"iterations={iterations}", "resume=auto")
    assert code == 0, output
    assert "Nothing is left to train" in output
    assert tree(copied / "run") == before


def test_a_run_at_its_last_iteration_says_so_and_is_tested_again(copied, trained):
    settings = copied / "run" / "config.yaml"
    settings.write_text(settings.read_text().replace(str(trained), str(copied)))
    before = tree(copied / "run")
    for name in ("finished", "test.json"):
        (copied / "run" / name).unlink()  # as if it had been killed in its test
    code, output = train(copied, "iterations=4", "resume=auto")
    assert code == 0, output
    assert "Nothing is left to train" in output
    after = tree(copied / "run")
    same = (
        "test.json",
        "finished",
        "model/model.safetensors",
        "ledger.json",
        f"checkpoints/{checkpoint_name(4)}",
    )
    assert {name: after[name] for name in same} == {name: before[name] for name in same}


@pytest.mark.parametrize(
    ("program", "arguments", "said"),
    [
        ("evaluate", ["hydra.run.dir=run", "data.evaluation_samples=2"], "tagrpo-eval"),
        ("evaluate", ["hydra.run.dir=run", "checkpoint=run"], "tagrpo-eval"),
        ("evaluate", ["hydra.run.dir=run", "exact=true"], "tagrpo-eval"),
        ("export", ["run/checkpoints/iteration-000003.ckpt", "run/model"], "run/model"),
        ("export", ["run", "policy"], "began with"),
        ("report", ["run", "-o", "run/test.json"], ".html"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_command_that_trains_nothing_does_not_replace_the_results_of_a_run(
    program, arguments, said, copied, trained
):
    settings = copied / "run" / "config.yaml"
    settings.write_text(settings.read_text().replace(str(trained), str(copied)))
    before = tree(copied / "run"), tree(copied / "policy")
    code, output = forked(program, *arguments, folder=copied)
    assert code not in (0, None), output
    assert said in output
    assert "Traceback" not in output
    found = tree(copied / "run")
    found.pop("evaluate.log", None)
    assert (found, tree(copied / "policy")) == before
