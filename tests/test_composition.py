"""Settings that tests compose once are those that Hydra composes."""

from __future__ import annotations

import pytest
from hydra import compose, initialize_config_dir, initialize_config_module
from hydra._internal import defaults_list
from hydra.compose import compose as plain
from omegaconf import OmegaConf

from tests import composition


@pytest.mark.parametrize("with_hydras_own", [False, True])
@pytest.mark.parametrize(
    ("command", "overrides"),
    [("train", ["experiment=dapo", "optimizer.lr=0.5"]), ("evaluate", ["protocol=pass_at_k"]), ("plan", [])],
)
def test_remembered_settings_are_hydras_and_copies_do_not_change_one_another(
    command, overrides, with_hydras_own
):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        expected = OmegaConf.to_yaml(plain(command, overrides, with_hydras_own))
        for _ in range(2):
            found = compose(command, overrides, with_hydras_own)
            assert OmegaConf.to_yaml(found) == expected
            assert OmegaConf.is_struct(found)
            found.optimizer.lr = 7.0


@pytest.mark.parametrize("overrides", [["experiment=svs"], ["scale=paper", "data=math", "lora=default"]])
def test_settings_are_those_that_hydra_composes_with_a_mapping_of_choices_for_each_list(
    overrides, monkeypatch
):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        found = plain("train", overrides, return_hydra_config=True)
        monkeypatch.setattr(defaults_list, "_create_interpolation_map", composition.map_of_choices)
        assert plain("train", overrides, return_hydra_config=True) == found


def test_a_defaults_list_with_an_interpolation_is_resolved(tmp_path):
    (tmp_path / "kind").mkdir()
    (tmp_path / "kind" / "b.yaml").write_text("found: b\n")
    (tmp_path / "top.yaml").write_text("defaults:\n  - model: starter\n  - kind: ${letter}\n  - letter: b\n")
    for name in ("model", "letter"):
        (tmp_path / name).mkdir()
        for option in ("starter", "b"):
            (tmp_path / name / f"{option}.yaml").write_text("x: 1\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        assert plain("top").kind.found == "b"


def test_a_wrong_setting_is_refused_each_time():
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        for _ in range(2):
            with pytest.raises(Exception, match="anchr"):
                compose("train", ["policy.anchr=own"])


@pytest.mark.parametrize("command", ["train", "evaluate", "rephrase", "plan", "comparisons/compare"])
def test_no_settings_of_a_command_set_hydras_mode(command):
    """`hasten` composes them once on that condition."""
    folder, _, name = f"configs/{command}".rpartition("/")
    with initialize_config_module(f"tagrpo.{folder.replace('/', '.')}", version_base="1.3"):
        assert plain(name, return_hydra_config=True).hydra.mode is None
