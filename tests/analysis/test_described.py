"""What the task and the methods are, in a sentence each, from the settings of the runs."""

from __future__ import annotations

import json
import sys

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from tagrpo.analysis.comparison import Methods
from tagrpo.analysis.described import described, meaning, method, task
from tagrpo.analysis.runs import RunFiles, by_method, find_runs
from tagrpo.settings.methods import experiments


@pytest.fixture(scope="module")
def settings():
    """Experiment → its resolved settings, but for those that need a run."""
    found = {}
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        for name in experiments():
            found[name] = OmegaConf.to_container(compose("train", [f"experiment={name}"]), resolve=False)
    return found


def run_with(folder, config):
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(json.dumps(config).replace("${", "$("))  # as if it were resolved
    return RunFiles("m", 0, folder)


def test_every_experiment_has_a_sentence(settings, tmp_path):
    for name, config in settings.items():
        config["data"]["samples_per_prompt"] = 8
        run = run_with(tmp_path / name, config)
        sentence = method(name, run, trained=True)
        assert sentence.startswith(f"{name}: 8 responses to each "), name
        assert sentence.endswith(".")
        assert sentence.count("\n") == 0
        assert config["advantage"]["_target_"].rpartition(".")[2] in sentence
        assert task(run).startswith("Task: ArithmeticSource, generated word problems"), name


def test_wordings_pools_and_additions_are_named(tmp_path):
    config = {
        "data": {"samples_per_prompt": 4, "num_rephrasings": 3},
        "advantage": {"_target_": "tagrpo.modules.advantages.GroupAdvantage", "group_by": "question"},
        "rollout": {"dynamic_sampling": {"_target_": "tagrpo.rollouts.dynamic_sampling.DynamicSampling"}},
    }
    sentence = method("x", run_with(tmp_path / "a", config), trained=True)
    assert sentence == (
        "x: 4 responses to each of 4 wordings of a question; GroupAdvantage, rewards relative to the other responses of "
        "their pool; a pool is the whole question; with replaced questions (DynamicSampling)."
    )
    config["advantage"]["group_by"] = "prompt"
    assert "a pool is one wording" in method("x", run_with(tmp_path / "b", config), trained=True)


def test_code_of_others_is_named_and_never_imported(tmp_path, monkeypatch):
    (tmp_path / "theirs.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for target in (
        "theirs.Advantage",
        "os.system",
        "tagrpo.no_such_module.Thing",
        "tagrpo..x",
        "tagrpo.\0.x",
        "",
    ):
        said = meaning({"_target_": target})
        assert said == target.rpartition(".")[2]
    assert "theirs" not in sys.modules


def test_classes_that_have_moved_are_found():
    said = meaning({"_target_": "tagrpo.datamodules.questions.QuestionDataModule"})
    assert said.startswith("QuestionDataModule, data module that serves")


def test_runs_without_settings_are_compared_without_descriptions(tmp_path, write_run):
    write_run(tmp_path, "grpo", 0, [1, 2])
    write_run(tmp_path, "ta_grpo", 0, [1, 2])
    assert described(Methods(by_method(find_runs(tmp_path)))) == []
