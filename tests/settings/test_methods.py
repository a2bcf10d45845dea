"""Rows of a paper, and the options of Hydra that are made from them."""

from __future__ import annotations

import pytest
from hydra import compose, initialize_config_module
from hydra.errors import MissingConfigException
from omegaconf import OmegaConf

from tagrpo.settings.methods import method_files, options_of, read, recipe_nodes, recipes_of, values_of

PAPER = {
    "options": ["/dynamic_sampling/default"],
    "recipe": {
        "loss.clip_high": {"paper": 0.28, "source": "Table 1", "authors": 0.3, "authors_source": "train.sh"},
        "loss.kl_coef": {"open": "not stated", "authors": 0.0, "authors_source": "train.sh"},
        "loss.clip_low": {"open": "not stated"},
        "loss.max_length": {"paper": 8192, "source": "Table 1", "here": "${rollout.sampling.max_new_tokens}"},
    },
    "scale": {"data.batch_size": {"paper": 512, "source": "Table 1"}},
    "authors": {"loss.dual_clip": {"paper": None, "source": "Eq. 1", "authors": 3.0, "authors_source": "train.sh"}},
    "settings": {"loss.ratio": {"paper": "token", "source": "Eq. 1"}},
}


def test_rows_become_the_recipes_of_a_paper():
    nodes = dict(recipe_nodes("x", PAPER))
    assert list(nodes) == ["x/paper", "x/paper_scale/paper", "x/authors", "x/authors_scale/paper"]
    always = {"clip_high": 0.28, "kl_coef": 0.0, "max_length": "${rollout.sampling.max_new_tokens}"}
    assert OmegaConf.to_container(nodes["x/paper"], resolve=False) == {
        "defaults": ["/dynamic_sampling/default", {"optional /settings/x/paper_scale": "${scale}"}], "loss": always,
    }  # fmt: skip
    assert OmegaConf.to_container(nodes["x/authors"], resolve=False)["loss"] == always | {
        "clip_high": 0.3,
        "dual_clip": 3.0,
    }
    assert OmegaConf.to_container(nodes["x/paper_scale/paper"], resolve=False) == {"data": {"batch_size": 512}}


@pytest.mark.parametrize("name", method_files())
def test_a_row_is_stated_or_open_or_our_own(name):
    paper = read(method_files()[name])
    for section in ("recipe", "scale", "authors", "authors_scale", "settings"):
        for key, row in paper.get(section, {}).items():
            assert set(row) <= {"paper", "source", "authors", "authors_source", "open", "here", "because"}, (name, key)
            assert {"paper", "authors", "open", "here"} & set(row), (name, key)
            assert section != "settings" or "here" not in row, "nothing is set there"


@pytest.mark.parametrize("name", method_files())
def test_a_row_has_its_effect_in_every_experiment_of_the_paper(name):
    paper = read(method_files()[name])
    rows = paper.get("recipe", {}) | paper.get("scale", {})
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        for experiment in paper["own"] if "paper" in recipes_of(paper) else ():
            cfg = compose("train", [f"experiment={experiment}", "scale=paper"])
            expected = cfg.copy()
            for key, row in rows.items():
                for value in values_of(row, "paper")[:1]:
                    OmegaConf.update(expected, key, value)
            assert cfg == expected, experiment  # values, however they are written


def test_papers_with_another_recipe_of_their_authors():
    theirs = {name for name, path in method_files().items() if "authors" in recipes_of(read(path))}
    assert theirs == {"ta_grpo", "dapo", "prompt_augmentation", "grpo_lead", "unlikeliness", "mathforge", "luffy"}


def test_a_file_of_ones_own_takes_the_place_of_an_option_of_that_name(tmp_path):
    text = (
        options_of("experiment")["grpo_ds"].replace("name: grpo_ds", "name: mine").replace("- grpo\n", "- ta_grpo_ds\n")
    )
    (tmp_path / "experiment").mkdir()
    for name in ("grpo_ds", "another"):
        (tmp_path / "experiment" / f"{name}.yaml").write_text(text)
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        for name in ("grpo_ds", "another"):
            cfg = compose("train", [f"hydra.searchpath=[file://{tmp_path}]", f"experiment={name}"])
            assert (cfg.name, cfg.data.num_rephrasings) == ("mine", 3)
        assert compose("train", ["experiment=grpo_ds"]).data.num_rephrasings == 0
        with pytest.raises(MissingConfigException, match=r"(?s)'experiment/grpo_dss'.*\tgrpo_ds\n"):
            compose("train", ["experiment=grpo_dss"])


def test_an_option_of_a_method_is_read_as_a_file_of_its_name_would_be():
    text = options_of("curriculum")["skip_uniform"]
    assert text.startswith("# @package data.curriculum\n# tagrpo-train curriculum=skip_uniform")
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose("train", ["curriculum=skip_uniform"])
        gspo = compose("train", ["experiment=gspo"])
    assert cfg.data.curriculum._target_ == "tagrpo.contrib.greso.curriculum.SkipUniform"
    assert (gspo.loss.clip_low, gspo.loss.clip_high) == (3e-4, 4e-4), "numbers as OmegaConf reads them"
