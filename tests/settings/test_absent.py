"""Groups that are null, or left out, on a command line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from tagrpo.settings.absent import NEEDED, PLACES
from tagrpo.settings.checks import check_run
from tagrpo.settings.config import compose_run
from tagrpo.settings.methods import options_of
from tests.helpers import forked

CONFIGS = Path(__file__).parents[2] / "configs"
DEFAULT = re.compile(r"^  - /?(\w+): ", re.MULTILINE)
GROUPS = [name for root in ("train", "scale/demo") for name in DEFAULT.findall((CONFIGS / f"{root}.yaml").read_text())]
SMALL = [
    "iterations=1", "data.train.size=8", "data.batch_size=4", "data.samples_per_prompt=2", "export=false",
    "data.evaluation_samples=2", "data.evaluation.test_id.size=4", "~data.evaluation.test_phrasing",
    "~data.evaluation.test_size",
]  # fmt: skip


def test_every_group_is_here():
    assert len(GROUPS) > 20
    assert set(GROUPS) >= {*NEEDED, *PLACES} - {"launcher", "rephraser", "source"}


@pytest.mark.parametrize("form", ["{}=null", "~{}"])
@pytest.mark.parametrize("group", GROUPS)
def test_a_group_is_absent_or_refused_with_what_can_be_chosen(tmp_path, group, form):
    asked = [form.format(group), "experiment=dapo"] if group != "experiment" else [form.format(group)]
    if group in NEEDED:
        option = re.escape(next(name for name in options_of(group) if name != "base"))
        with pytest.raises(
            ConfigCompositionException, match=rf"Expected {group} to be one of {option}.*got {asked[0]}"
        ):
            compose_run(tmp_path, asked)
        return
    cfg = compose_run(tmp_path, asked)
    assert OmegaConf.select(cfg, PLACES.get(group, group)) is None
    assert "${" not in OmegaConf.to_yaml(cfg, resolve=True)


@pytest.mark.parametrize(
    ("experiment", "none", "place"),
    [
        ("dapo", "dynamic_sampling=none", "rollout.dynamic_sampling"),
        ("clip_cov", "dynamic_sampling=none", "rollout.dynamic_sampling"),  # its recipe brings it
        ("cispo", "reward_terms=[]", "rollout.reward_terms"),
        ("clip_cov", "credit=null", "credit"),
        ("greso", "curriculum=null", "data.curriculum"),
    ],
)
def test_none_is_none_whatever_an_experiment_sets(tmp_path, experiment, none, place):
    assert OmegaConf.select(compose_run(tmp_path, [f"experiment={experiment}"]), place)
    assert OmegaConf.select(compose_run(tmp_path, [f"experiment={experiment}", none]), place) is None


def test_the_last_word_counts(tmp_path):
    assert compose_run(tmp_path, ["logger=null", "logger=csv"]).logger.keys() == {"csv"}
    assert compose_run(tmp_path, ["logger=csv", "logger=null"]).logger is None
    own = "+callbacks.mine._target_=a.B"
    assert compose_run(tmp_path, ["callbacks=null", own]).callbacks == {"mine": {"_target_": "a.B"}}


def test_an_evaluation_asks_something(tmp_path):
    cfg = compose_run(tmp_path, ["data/evaluation=null"], "evaluate")
    with pytest.raises(ValueError, match=r"data\.evaluation is empty"):
        check_run(cfg, trains=False)


def test_a_run_without_callbacks_logger_and_test_questions(tmp_path):
    code, said = forked("train", *SMALL[:5], "callbacks=null", "logger=null", "data/evaluation=null", folder=tmp_path)
    assert code == 0, said
    assert "Epoch" not in said
    assert "UserWarning" not in said
    run = tmp_path / "runs" / "ta_grpo" / "seed0"
    assert {path.name for path in run.iterdir() if not path.name.startswith(".")} == {
        "config.yaml", "data.json", "finished", "ledger.json", "provenance.json", "train.log",
    }  # fmt: skip


def test_each_value_of_a_sweep_is_read_so(tmp_path):
    code, said = forked("train", "-m", *SMALL, "logger=null,csv", "hydra.sweep.dir=sweep", folder=tmp_path)
    assert code == 0, said
    assert [path.parent.name[0] for path in (tmp_path / "sweep").glob("*/metrics.csv")] == ["1"]


@pytest.mark.parametrize(
    ("command", "asked", "message"),
    [
        ("compare", ["launcher=null"], "Expected launcher to be one of local, slurm"),
        ("compare", ["methods=[grpo]", "overrides=['model=null']"], "(?s)methods.grpo .*Expected model to be one of"),
        ("rephrase", ["~rephraser"], "Expected rephraser to be one of box1, first_version"),
        ("plan", ["loss=null"], "Expected loss to be one of clip"),
        ("diff", ["loss=null", "loss=clip"], "Expected loss to be one of clip"),
        ("evaluate", ["callbacks=null"], r"Expected callbacks\.pass_at_k"),
    ],
)
def test_other_commands_say_the_same(tmp_path, command, asked, message):
    code, said = forked(command, *asked, folder=tmp_path)
    assert code == 1
    assert re.search(message, said), said
    assert "Traceback" not in said
