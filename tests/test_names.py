"""docs/names.md: each name of TRL is a field of its configuration, and each of ours a setting."""

from __future__ import annotations

import dataclasses
import inspect
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from tagrpo.settings.methods import options_of

pytestmark = pytest.mark.pages

PAGE = (Path(__file__).parents[1] / "docs" / "names.md").read_text()
MISSING = "–"


def table():
    """Rows of the page: names of TRL, of verl and of ours, and what differs."""
    lines = re.findall(r"^\| (?!TRL|---)(.*) \|$", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines if not set(line) <= set("-| ")]


def names(column):
    """Names in a column, without values."""
    cells = [row[column] for row in table()]
    assert all(cell == MISSING or re.fullmatch(r"`[^`]+`", cell) for cell in cells)
    return [cell.strip("`").partition("=")[0] for cell in cells if cell != MISSING]


@pytest.fixture(scope="module")
def settings():
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        return compose("train", ["experiment=grpo", "reward=function", "reward.target=my_rewards.close"])


def test_each_of_our_names_is_a_setting_or_a_group(settings):
    ours = names(2)
    assert len(ours) > 20
    missing = object()
    unknown = [name for name in ours if OmegaConf.select(settings, name, default=missing) is missing]
    assert [name for name in unknown if not options_of(name)] == []
    told = " ".join(row[3] for row in table()) + PAGE.rpartition("|")[2]
    shown = re.findall(r"`((?:loss|policy|advantage|data|rollout|reward)\.[\w.]+)`", told)
    assert len(shown) > 3
    assert [name for name in shown if OmegaConf.select(settings, name, default=missing) is missing] == []


def test_our_defaults_are_those_of_the_page(settings):
    assert settings.loss.kl_coef == 0.001
    assert settings.loss.dual_clip is None
    assert settings.loss.aggregation == "sequence_mean"
    assert settings.mismatch is None


@pytest.mark.skipif(find_spec("trl") is None, reason="trl is not installed")
def test_each_name_of_trl_is_in_its_configuration():
    from trl import GRPOConfig, GRPOTrainer

    known = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
    known |= dict.fromkeys(inspect.signature(GRPOTrainer).parameters)
    theirs = names(0)
    assert len(theirs) > 20
    assert [name for name in theirs if name not in known] == []
    assert "use_bias_correction_kl" in known
    assert (known["beta"], known["delta"], known["loss_type"]) == (0.0, None, "dapo")


@pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")
def test_each_name_of_verl_is_in_its_configuration():
    package = find_spec("verl")
    settings = OmegaConf.load(
        Path(package.submodule_search_locations[0]) / "trainer/config/_generated_ppo_trainer.yaml"
    )
    missing = object()
    unknown = [
        name
        for name in names(1)
        if OmegaConf.select(settings, name, default=missing, throw_on_missing=False) is missing
    ]
    assert unknown == []
