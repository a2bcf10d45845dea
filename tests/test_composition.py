"""Settings that tests compose once are those that Hydra composes."""

from __future__ import annotations

import pytest
from hydra import compose, initialize_config_module
from hydra.compose import compose as plain
from omegaconf import OmegaConf


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


def test_a_wrong_setting_is_refused_each_time():
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        for _ in range(2):
            with pytest.raises(Exception, match="anchr"):
                compose("train", ["policy.anchr=own"])
