"""Settings that tests compose once are those that Hydra composes."""

from __future__ import annotations

import pytest
from hydra import compose, initialize_config_module
from hydra.compose import compose as plain
from hydra.errors import HydraException
from omegaconf import OmegaConf, open_dict

from tagrpo.settings.methods import options_of
from tests import composition


@pytest.mark.parametrize(
    ("command", "overrides"),
    [
        ("train", ["experiment=dapo", "optimizer.lr=0.5"]),
        ("train", ['hydra.run.dir="a b"', "+notes=x", "seed=3", "~data.evaluation.test_size", "name='c,d'", "experiment=grpo"]),
        ("train", ["loss.clip_high=${loss.clip_low}", "data.evaluation.test_id.size=2", "callbacks.pass_at_k.ks=[1,2]"]),
        ("train", ["callbacks.checkpoint.every=9", "callbacks=[checkpoint]", "optimizer.betas=[0.5,0.6]", "+x.y={a: 1}"]),
        ("train", ["callbacks.recorder={_target_: a.B}", "+callbacks.recorder.size=3", "callbacks.recorder.size=4"]),
        ("train", ["+callbacks.mine={_target_: a.B, size: 3}", "callbacks.mine.size=4", "++seed=3", "seed=4"]),
        ("evaluate", ["protocol=pass_at_k"]),
        ("evaluate", ["exact=true", "data=math", "data_path=/x", "data.train=null"]),
        ("plan", []),
    ],
)  # fmt: skip
def test_remembered_settings_are_hydras_and_copies_do_not_change_one_another(command, overrides):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        expected = plain(command, overrides, return_hydra_config=True)
        for _ in range(2):
            found = compose(command, overrides, return_hydra_config=True)
            assert OmegaConf.to_yaml(found) == OmegaConf.to_yaml(expected)
            assert OmegaConf.is_struct(found)
            found.optimizer.lr = 7.0
        found = compose(command, overrides)
    with open_dict(expected):
        del expected["hydra"]
    assert OmegaConf.to_yaml(found) == OmegaConf.to_yaml(expected)
    assert OmegaConf.is_struct(found)


def test_a_wrong_setting_is_refused_each_time():
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        for _ in range(2):
            with pytest.raises(Exception, match="anchr"):
                compose("train", ["policy.anchr=own"])


def test_settings_that_are_set_after_all_options_are_no_options():
    for name in composition.AT_THE_TOP:
        assert not options_of(name)
        assert composition.VALUE.match(f"{name}=1")
    for choice in (
        "data=math",
        "data/evaluation=none",
        "+seed=1",
        "~seed",
        "nothing=1",
        "seeds=1",
        "a@b.c=1",
    ):
        assert not composition.VALUE.match(choice)


@pytest.mark.parametrize(
    "overrides", [["optimizer.betas=[1,2"], ["seed=1,2"], ["optimizer.lr=range(3)"], ["data.train.sise=3"]]
)
def test_what_hydra_refuses_is_refused(overrides):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        with pytest.raises(HydraException) as expected:
            plain("train", overrides)
        with pytest.raises(type(expected.value)) as found:
            compose("train", overrides)
    assert str(found.value) == str(expected.value)
