"""Settings that did not exist when a run was made do not keep it from being resumed; other changes do."""

from __future__ import annotations

import pytest
import yaml
from hydra.utils import get_object

from tagrpo.runs import directory
from tagrpo.runs.added import ADDED, MOVED, is_added
from tagrpo.settings.config import compose_run


def run_of(folder, *without):
    """A run's settings with two settings of its version missing, and those of today."""
    cfg = compose_run(folder, ["experiment=grpo"])
    from omegaconf import OmegaConf

    then = OmegaConf.to_container(cfg, resolve=True)
    for name in without:
        *parts, last = name.split(".")
        node = then
        for part in parts:
            node = node[part]
        del node[last]
    (folder / "checkpoints" / "iteration-000001.ckpt").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(then))
    return cfg


def test_a_run_of_an_earlier_version_may_go_on(tmp_path):
    cfg = run_of(tmp_path, "rollout.verifier_reads", "policy.schedule_options")
    cfg.resume = "auto"
    with pytest.warns(UserWarning, match="rollout.verifier_reads=answer"):
        changed = directory.admit(cfg, tmp_path)
    assert changed["rollout.verifier_reads"] == (None, "answer")


def test_a_run_that_names_classes_where_they_were_may_go_on(tmp_path):
    cfg = run_of(tmp_path)
    former = {now: then for then, now in MOVED.items()}
    path = tmp_path / "config.yaml"
    then = yaml.safe_load(path.read_text())
    for part in (then["policy"], then["data"]):
        part["_target_"] = former[part["_target_"]]
    path.write_text(yaml.safe_dump(then))
    cfg.resume = "auto"
    assert directory.admit(cfg, tmp_path) == {}


@pytest.mark.parametrize("name", MOVED.values())
def test_classes_that_have_moved_are_where_the_table_says(name):
    assert get_object(name).__name__ == name.rpartition(".")[2]


def test_a_new_setting_with_another_value_is_a_change(tmp_path):
    cfg = run_of(tmp_path, "policy.schedule_options")
    cfg.resume, cfg.policy.schedule_options = "auto", {"min_lr_rate": 0.1}
    with pytest.raises(ValueError, match="policy.schedule_options"):
        directory.admit(cfg, tmp_path)


def test_a_run_on_a_file_of_an_earlier_version_may_go_on():
    """Sources named neither columns nor formats; what they read by default is what they read now."""
    known = {"data.train._target_": "…", "data.train.path": "q.jsonl", "data.evaluation.test.path": "t.jsonl"}
    for part in ("data.train", "data.evaluation.test"):
        assert is_added(f"{part}.columns.question", known, "question")
        assert not is_added(f"{part}.columns.question", known, "problem")
        assert is_added(f"{part}.worked", known, False)
        assert not is_added(f"{part}.worked", known, True)


def test_a_new_part_is_a_change():
    known = {"rollout.ahead": 0}
    assert not is_added("template.date", known, "2024-07-26")  # there was no template
    assert not is_added("rollout.reward_terms.overlong.cache", known, None)
    assert is_added("rollout.verifier_reads", known, "response")
    assert not is_added("rollout.verifier_reads", known, "thoughts")


def test_a_new_setting_at_the_top_level_has_no_part_that_could_be_new(monkeypatch):
    monkeypatch.setitem(ADDED, "effort", (1,))
    assert is_added("effort", {"seed": 0}, 1)
    assert not is_added("effort", {"seed": 0}, 2)
    assert not is_added("effort", {"seed": 0, "effort": 2}, 1)
    assert not is_added("part.effort", {"seed": 0, "parts.effort": 2}, 1)


def test_every_added_setting_has_a_value_to_go_on_with():
    assert all(isinstance(values, tuple) and values for values in ADDED.values())
