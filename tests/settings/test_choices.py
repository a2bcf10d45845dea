"""Options that a command line chooses, and groups that a run goes without."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tagrpo.settings.checks import check_run
from tagrpo.settings.choices import check_choices
from tagrpo.settings.config import compose_run
from tagrpo.settings.methods import options_of
from tests.helpers import forked

CONFIGS = Path(__file__).parents[2] / "configs"
DEFAULT = re.compile(r"^  - /?(\w+): ", re.MULTILINE)
GROUPS = [
    name
    for root in ("train", "scale/demo")
    for name in DEFAULT.findall((CONFIGS / f"{root}.yaml").read_text())
]
SMALL = [
    "iterations=1", "data.train.size=8", "data.batch_size=4", "data.samples_per_prompt=2", "export=false",
    "data.evaluation_samples=2", "data.evaluation.test_id.size=4", "~data.evaluation.test_phrasing",
    "~data.evaluation.test_size",
]  # fmt: skip


PLACES = {
    "curriculum": "data.curriculum",
    "dynamic_sampling": "rollout.dynamic_sampling",
    "reward_terms": "rollout.reward_terms",
}
NEEDED = {
    "advantage", "loss", "optimizer", "policy", "scale", "recipe", "model", "template", "reward", "rollout", "trainer",
    "strategy", "data",
}  # fmt: skip
"""Groups of which every run has an option."""


def test_every_group_is_here():
    assert len(GROUPS) > 20
    assert {group for group in GROUPS if "none" not in options_of(group)} == NEEDED


@pytest.mark.parametrize("form", ["{}=null", "~{}", "{}=null,null"])
@pytest.mark.parametrize("group", sorted(NEEDED))
def test_a_group_that_every_run_needs_is_not_left_out(tmp_path, group, form):
    option = re.escape(next(name for name in options_of(group) if name != "base"))
    with pytest.raises(ValueError, match=rf"Expected {group}.*{option}.*{form.format(group)}"):
        compose_run(tmp_path, [form.format(group), "experiment=dapo"])


OPTIONAL = sorted({*GROUPS, "data/evaluation"} - NEEDED)
LEFT_OUT = [f"{group}=none" for group in OPTIONAL] + [
    f"~{group}" for group in OPTIONAL if group != "reward_terms"
]
"""Hydra cannot delete a group that is a list."""


@pytest.mark.parametrize("form", [*LEFT_OUT, "reward_terms=[]"])
def test_a_run_goes_without_any_other_group(tmp_path, form):
    group = form.strip("~").partition("=")[0]
    cfg = compose_run(tmp_path, [form, *(["experiment=dapo"] if group != "experiment" else [])])
    assert not OmegaConf.select(cfg, PLACES.get(group, group.replace("/", ".")))
    assert "${" not in OmegaConf.to_yaml(cfg, resolve=True)


@pytest.mark.parametrize("group", OPTIONAL)
def test_none_is_spelt_as_an_option(tmp_path, group):
    with pytest.raises(ValueError, match=f"Expected {group}=none.*got {group}=null"):
        compose_run(tmp_path, [f"{group}=null"])


@pytest.mark.parametrize(
    "wrong", ["callbacks=5", "recipe={a: 1}", "loss=true", "loss=1.5,clip", "logger=[1,2]"]
)
def test_an_option_is_a_name(wrong):
    with pytest.raises(ValueError, match=f"Expected {wrong.partition('=')[0]}"):
        check_choices([wrong])
    check_choices(
        [
            "loss=clip",
            "reward_terms=[overlong,noise]",
            "reward_terms=[]",
            "+credit=a",
            "seed=null",
            "--cfg=job",
        ]
    )
    check_choices(
        [
            "-m",
            "loss=clip,mine",
            "seed=range(3)",
            "callbacks.pass_at_k=null",
            "~callbacks.recorder",
            "loss@x=1",
        ]
    )


@pytest.mark.parametrize(
    ("experiment", "none", "place"),
    [
        ("dapo", "dynamic_sampling=none", "rollout.dynamic_sampling"),
        ("clip_cov", "dynamic_sampling=none", "rollout.dynamic_sampling"),  # its recipe brings it
        ("cispo", "reward_terms=[]", "rollout.reward_terms"),
        ("dapo", "reward_terms=none", "rollout.reward_terms"),
        ("clip_cov", "credit=none", "credit"),
        ("greso", "curriculum=none", "data.curriculum"),
    ],
)
def test_none_is_none_whatever_an_experiment_sets(tmp_path, experiment, none, place):
    assert OmegaConf.select(compose_run(tmp_path, [f"experiment={experiment}"]), place)
    assert not OmegaConf.select(compose_run(tmp_path, [f"experiment={experiment}", none]), place)
    common = compose_run(tmp_path, [f"experiment={experiment}", none, "scale=paper", "recipe=common"])
    assert not OmegaConf.select(common, place)


def test_a_group_may_have_members_of_ones_own_alone(tmp_path):
    own = "+callbacks.mine._target_=a.B"
    assert compose_run(tmp_path, ["callbacks=none", own]).callbacks == {"mine": {"_target_": "a.B"}}
    assert compose_run(tmp_path, ["logger=none", "logger=csv"]).logger.keys() == {"csv"}


@pytest.mark.parametrize("chosen", ["none", "default"])
def test_what_a_recipe_brings_gives_way_to_what_is_chosen(tmp_path, chosen):
    for recipe in ("paper", "common"):
        cfg = compose_run(tmp_path, ["experiment=clip_cov", f"recipe={recipe}", f"dynamic_sampling={chosen}"])
        assert (cfg.rollout.dynamic_sampling is not None) == (chosen == "default")
    assert compose_run(tmp_path, ["experiment=clip_cov", "recipe=common"]).rollout.dynamic_sampling is None
    assert compose_run(tmp_path, ["experiment=cispo", "recipe=common"]).rollout.reward_terms == {}
    assert compose_run(tmp_path, ["experiment=cispo"]).rollout.reward_terms.keys() == {"signed", "overlong"}


def test_an_evaluation_asks_something(tmp_path):
    cfg = compose_run(tmp_path, ["data/evaluation=none"], "evaluate")
    with pytest.raises(ValueError, match=r"data\.evaluation is empty"):
        check_run(cfg, trains=False)


def test_a_run_without_callbacks_logger_and_test_questions(tmp_path):
    code, said = forked(
        "train", *SMALL[:5], "callbacks=none", "logger=none", "data/evaluation=none", folder=tmp_path
    )
    assert code == 0, said
    assert "Epoch" not in said
    assert "UserWarning" not in said
    run = tmp_path / "runs" / "ta_grpo" / "seed0"
    assert {path.name for path in run.iterdir() if not path.name.startswith(".")} == {
        "config.yaml", "data.json", "finished", "ledger.json", "provenance.json", "train.log",
    }  # fmt: skip


def test_each_value_of_a_sweep_is_read_so(tmp_path):
    code, said = forked("train", "-m", *SMALL, "logger=none,csv", "hydra.sweep.dir=sweep", folder=tmp_path)
    assert code == 0, said
    assert [path.parent.name[0] for path in (tmp_path / "sweep").glob("*/metrics.csv")] == ["1"]


@pytest.mark.parametrize(
    ("command", "asked", "message"),
    [
        ("compare", ["launcher=null"], "Expected launcher to be one of local, slurm"),
        (
            "compare",
            ["methods=[grpo]", "overrides=['model=null']"],
            "(?s)methods.grpo .*Expected model to be one of",
        ),
        ("rephrase", ["~rephraser"], "Expected rephraser to be one of box1, first_version"),
        ("plan", ["loss=null"], "Expected loss to be one of clip"),
        ("diff", ["loss=null", "loss=clip"], "Expected loss to be one of clip"),
        ("evaluate", ["callbacks=none"], r"Expected callbacks\.pass_at_k"),
    ],
)
def test_other_commands_say_the_same(tmp_path, command, asked, message):
    code, said = forked(command, *asked, folder=tmp_path)
    assert code == 1
    assert re.search(message, said), said
    assert "Traceback" not in said
