"""Compositions of settings in less time, for tests that make hundreds."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache, lru_cache

import hydra
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, flag_override


def remember() -> None:
    """Have `hydra.compose` compose equal settings once. Call this before others import `compose`."""
    plain = hydra.compose

    @lru_cache(maxsize=1000)  # 300 KB each
    def composed(config: str, overrides: tuple[str, ...], places: tuple[str, ...]) -> DictConfig:
        return plain(config, list(overrides), return_hydra_config=True)

    def compose(
        config_name: str, overrides: Sequence[str] = (), return_hydra_config: bool = False
    ) -> DictConfig:
        if any("searchpath" in override for override in overrides):  # files of a test, which may change
            return plain(config_name, list(overrides), return_hydra_config)
        path = GlobalHydra.instance().config_loader().get_search_path().get_path()
        cfg = copy.deepcopy(composed(config_name, tuple(overrides), tuple(element.path for element in path)))
        if not return_hydra_config:
            with flag_override(cfg, ["struct", "readonly"], False):
                del cfg["hydra"]
        return cfg

    hydra.compose = compose


@cache
def parse() -> None:
    """Have Hydra compose the settings of a run once, so that forks of this process have its grammar and files."""
    with hydra.initialize_config_module("tagrpo.configs", version_base="1.3"):
        hydra.compose("train", ["experiment=grpo"])
