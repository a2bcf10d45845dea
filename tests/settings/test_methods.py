"""Options that are files of the configuration tree and of methods' folders, and tables of what papers ran."""

from __future__ import annotations

import pytest
from hydra import compose, initialize_config_module
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.errors import MissingConfigException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from tagrpo.settings import methods
from tagrpo.settings.methods import MethodFolders, options_of, read_paper, recipes_of, tables

KEYS = {
    "title", "names", "arxiv", "version", "code", "text", "differs", "reproduces", "cited", "values", "own", "defines",
    "not_keys", "notes", "starts_from", "idea", "objective",
}  # fmt: skip


@pytest.mark.parametrize("name", tables())
def test_a_table_says_of_each_setting_what_was_run_and_where_it_is_stated(name):
    paper = read_paper(tables()[name])
    assert set(paper) <= KEYS
    for rows in (paper.get("values", {}), *paper["own"].values()):
        for key, row in rows.items():
            assert set(row) <= {"paper", "source", "authors", "authors_source", "open", "because"}, (
                name,
                key,
            )
            assert ("paper" in row) == ("source" in row) != ("open" in row), (name, key)
            assert ("authors" in row) == ("authors_source" in row), (name, key)
            assert {"paper", "authors", "open"} & set(row), (name, key)


def test_papers_with_another_recipe_of_their_authors():
    theirs = {name for name in tables() if "authors" in recipes_of(name)}
    assert theirs == {
        "ta_grpo",
        "dapo",
        "prompt_augmentation",
        "grpo_lead",
        "unlikeliness",
        "mathforge",
        "luffy",
    }


@pytest.mark.parametrize("name", tables())
def test_recipes_are_those_of_a_table(name):
    for folder in (methods.configs(), *methods.method_configs()):
        if (folder / "settings" / name).is_dir():
            found = {path.stem for path in (folder / "settings" / name).glob("*.yaml")}
            assert found <= {"paper", "authors", "common"}
            assert folder == methods.configs() or folder.parent.name == name


def test_the_folders_of_methods_are_on_the_search_path_once():
    assert Plugins.instance().discover(SearchPathPlugin).count(MethodFolders) == 1
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        sources = compose("train", return_hydra_config=True).hydra.runtime.config_sources
    added = [source.path for source in sources if source.provider == "tagrpo.contrib"]
    assert added == [str(folder) for folder in methods.method_configs()]
    assert issubclass(MethodFolders, SearchPathPlugin)
    assert ConfigSearchPath in MethodFolders.manipulate_search_path.__annotations__.values()


def test_options_of_ones_own_stand_beside_those_of_methods(tmp_path):
    text = options_of("experiment")["grpo_ds"].replace("name: grpo_ds", "name: mine")
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(text.replace("- grpo\n", "- ta_grpo_ds\n"))
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose("train", [f"hydra.searchpath=[file://{tmp_path}]", "experiment=mine"])
        assert (cfg.name, cfg.data.num_rephrasings) == ("mine", 3)
        assert compose("train", ["experiment=grpo_ds"]).data.num_rephrasings == 0
        with pytest.raises(MissingConfigException, match=r"(?s)'experiment/grpo_dss'.*\tgrpo_ds\n"):
            compose("train", ["experiment=grpo_dss"])


def test_numbers_are_read_as_omegaconf_reads_them():
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        gspo = compose("train", ["experiment=gspo"])
    assert (gspo.loss.clip_low, gspo.loss.clip_high) == (3e-4, 4e-4)
    rows = read_paper(tables()["gspo"])["values"]
    assert OmegaConf.select(gspo, "loss.clip_low") == rows["loss.clip_low"]["paper"]
