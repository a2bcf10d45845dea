"""What the README says of methods, pictures and pages, and how long the pages of a newcomer are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from tagrpo.modules import advantages, losses
from tagrpo.rewards import terms
from tagrpo.settings.methods import experiments, method_configs

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
    surrogates = {(cfg.loss.objective, cfg.loss.ratio) for cfg in composed.values()}
    of_trainers = {("clip", "product")}  # conventions=trl/rloo
    assert surrogates | of_trainers == set(losses.SURROGATES)
    assert {cfg.loss.aggregation for cfg in composed.values()} == set(losses.AGGREGATIONS)


def test_the_table_of_methods_has_every_experiment_once():
    readme = (ROOT / "README.md").read_text()
    table = readme[readme.index("| method | `experiment=`") :].split("\n\n")[0]
    assert sorted(re.findall(r"`(\w+)`", table)) == EXPERIMENTS


def test_each_method_has_a_row_of_its_own():
    """A row shares one paper, or is of variants of one method: no row lists methods of several folders."""
    readme = (ROOT / "README.md").read_text()
    table = readme[readme.index("| method | `experiment=`") :].split("\n\n")[0]
    folders = {
        path.stem: path.parents[2].name
        for folder in method_configs()
        for path in folder.glob("experiment/*.yaml")
    }
    for row in table.splitlines()[2:]:
        found = {folders.get(name, "core") for name in re.findall(r"`(\w+)`", row)}
        assert len(found - {"core", "adaptive_rephrasings"}) <= 1, row


def test_its_python_block_makes_a_trainer_with_both_callbacks():
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    namespace: dict[str, object] = {}
    exec(code, namespace)
    made = [type(callback).__name__ for callback in namespace["trainer"].callbacks]
    assert made[:2] == ["ZeroGradientMonitor", "EmbeddingDiversityMonitor"]


def words_of(page):
    """Words of a page outside its blocks of code, without the bars of tables."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    return len(re.sub(r"^[|\s:-]+$|\|", " ", text, flags=re.MULTILINE).split())


@pytest.mark.parametrize(
    ("most", "pages"),
    [
        (800, ["README.md"]),
        (600, ["docs/own_questions.md"]),
        (700, ["docs/quickstart.md"]),
        (500, ["docs/names.md"]),
        (600, ["docs/verdicts.md"]),
        (600, ["docs/report.md"]),
        (2200, ["docs/running.md", "docs/your_own_data.md", "docs/data.md"]),
    ],
)
def test_pages_are_short(most, pages):
    assert sum(map(words_of, pages)) <= most


def test_every_picture_and_page_that_the_readme_shows_exists():
    links = re.findall(r"\]\((?!http)([^)#]+)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
