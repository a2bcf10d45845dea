"""Settings that a class does not take are named before it is built."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from tagrpo.datamodules.templates import Template
from tagrpo.settings import config
from tagrpo.settings.typed import check_declared, fits, written_at


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("+rollout.engine.foo=1", "rollout.engine.foo "),
        ("+model.load.attn_implementation=sdpa", "model.load.attn_implementation "),
        ("+policy.foo=1", "policy.foo "),
        ("+rollout.sampling.stop=3", "rollout.sampling.stop "),
        ("data.template=3", "data.template "),
        ("model.path=3", "Expected model.path "),
        ("+averages.mine=3", "Expected averages.mine "),
        ("rollout._partial_=null", "Expected rollout._partial_ "),
        ("optimizer._partial_=3", "Expected optimizer._partial_ "),
        ("+loss._recursive_=x", "Expected loss._recursive_ "),
        ("+data._convert_={a: 1}", "Expected data._convert_ "),
    ],
)
def test_wrong_arguments_are_named_where_they_were_written(tmp_path, override, named):
    with pytest.raises(ValueError, match=named):
        check_declared(config.compose_run(tmp_path, ["experiment=grpo", override]))


def test_composed_settings_are_arguments(tmp_path):
    for experiment in ("ta_grpo", "dapo", "luffy", "prompt_augmentation", "skywork_or1"):
        check_declared(config.compose_run(tmp_path, [f"experiment={experiment}"]))


def test_a_part_of_this_package_is_no_plain_value():
    assert fits({"_target_": "x.Mine"}, Template)
    assert not any(fits(value, Template) for value in (3, "raw", [1], {}, None))
    assert fits({"a": [1]}, dict[str, list[int]])
    assert not fits({"a": 3}, dict[str, list[int]])
    assert fits({"a": 3}, dict[str, Any])


def test_references_lead_to_the_setting_that_was_written():
    cfg = OmegaConf.create({"a": {"b": 1}, "c": "${a}", "d": "${c}", "e": "x-${a.b}"})
    assert written_at(cfg, "d.b") == "a.b"
    assert written_at(cfg, "e") == "e"
    assert written_at(cfg, "nothing.here") == "nothing.here"


@pytest.mark.parametrize("setting", ["callbacks.mine", "logger.mine", "rollout.reward_terms.mine"])
def test_members_of_groups_have_settings(tmp_path, setting):
    with pytest.raises(ValueError, match=setting):
        config.compose_run(tmp_path, ["experiment=grpo", f"+{setting}=5"])


@pytest.mark.parametrize("setting", [*config.PARTS, *config.GROUPS, *config.OPTIONAL])
def test_settings_that_hold_others_are_mappings(tmp_path, setting):
    cfg = config.compose_run(tmp_path, ["experiment=grpo"])
    OmegaConf.update(cfg, setting, 5, force_add=True)
    with pytest.raises(ValueError, match=rf"Expected {setting}"):
        config.check_sections(cfg)


def test_a_member_of_a_group_without_a_value_is_left_to_the_check_of_missing_settings(tmp_path):
    cfg = config.compose_run(tmp_path, ["experiment=grpo"])
    OmegaConf.update(cfg, "callbacks.mine", "???", force_add=True)
    config.check_sections(cfg)


def test_the_dotted_name_of_a_wrong_argument_is_exact_at_any_depth():
    counter = {"_target_": "collections.Counter", "x": 1}
    for name, node in {"a": counter, "a.b": {"b": counter}, "a.0.c": [{"c": counter}]}.items():
        check_declared(OmegaConf.create({"a": node}))  # it takes any
        wrong = {"_target_": "tagrpo.rollouts.SamplingConfig", "temperature": 1.0, "wrong": 1}
        tree = OmegaConf.create({"a": node})
        OmegaConf.update(tree, name.replace(".0", "[0]"), wrong, merge=False)
        with pytest.raises(ValueError, match=rf"Expected {name}\.wrong.*SamplingConfig"):
            check_declared(tree)


@pytest.mark.parametrize("setting", ["callbacks.mine", "logger.mine"])
def test_members_of_groups_are_of_the_kind_of_the_group(tmp_path, setting):
    cfg = config.compose_run(tmp_path, ["experiment=grpo", f"+{setting}._target_=os.getcwd"])
    with pytest.raises(ValueError, match=setting):
        config.build(cfg)
