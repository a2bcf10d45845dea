"""What the README says of methods, pictures and pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from tagrpo.modules import advantages, losses
from tagrpo.rewards import terms
from tagrpo.settings.methods import experiments

pytestmark = pytest.mark.pages

ROOT = Path(__file__).parents[1]
EXPERIMENTS = experiments()


@pytest.fixture(scope="module")
def composed():
    """Experiment → its configuration."""
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        return {name: compose("train", [f"experiment={name}"]) for name in EXPERIMENTS}


def targets(node):
    """Every `_target_` in a configuration, by its last name."""
    if isinstance(node, DictConfig):
        own = [node._get_node("_target_")._value().rpartition(".")[2]] if "_target_" in node else []
        return {*own, *(name for key in node for name in targets(node._get_node(key)))}
    return set()


def test_every_strategy_term_and_sampler_belongs_to_an_experiment(composed):
    used = set().union(*(targets(cfg) for cfg in composed.values()))
    strategies = {name for name in advantages.__all__ if name.endswith("Advantage")}
    shaping = {
        name
        for name, item in vars(terms).items()
        if isinstance(item, type) and item.__module__ == terms.__name__
    }
    samplers = {"DynamicSampling", "SuccessReplay", "PromptAugmentation", "AdaptiveRephrasings"}
    assert strategies | shaping | samplers <= used
    assert {(cfg.loss.objective, cfg.loss.ratio) for cfg in composed.values()} == set(losses.SURROGATES)
    assert {cfg.loss.aggregation for cfg in composed.values()} == set(losses.AGGREGATIONS)


def test_the_table_of_families_has_every_experiment_once():
    readme = (ROOT / "README.md").read_text()
    table = readme[readme.index("| family |") :].split("\n\n")[0]
    assert sorted(re.findall(r"`(\w+)`", table)) == EXPERIMENTS


def test_every_picture_and_page_that_the_readme_shows_exists():
    links = re.findall(r"\]\((?!http)([^)#]+)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
