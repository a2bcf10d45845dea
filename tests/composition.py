"""Compositions of settings in less time, for tests that make hundreds."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache, lru_cache

import hydra
from hydra._internal import defaults_list
from hydra._internal.hydra import Hydra
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import InputDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import DictConfig, flag_override

map_of_choices = defaults_list._create_interpolation_map
"""Make the mapping of all choices that a defaults list with interpolations is resolved with."""


def hasten() -> None:
    """Have Hydra read each file of the package once, and compose the settings of a command once.

    Hydra runs the files of its sources again when it looks for plugins, so the class to change is the plugin's.
    It copies its store of all options for each composition, and makes a mapping of all choices for each defaults list,
    which few of them use. It composes the settings of a command twice: the first time for `hydra.mode`, which no
    settings of the package set.
    """
    packaged = next(
        source for source in Plugins.instance().discover(ConfigSource) if source.scheme() == "pkg"
    )
    read, known = packaged.load_config, {}

    def read_once(source: ConfigSource, config_path: str) -> ConfigResult:
        if (source.path, config_path) not in known:
            known[source.path, config_path] = read(source, config_path)
        return copy.deepcopy(known[source.path, config_path])

    packaged.load_config = read_once

    def map_where_it_is_used(
        overrides: defaults_list.Overrides, defaults: list[InputDefault], self_added: bool
    ) -> DictConfig | None:
        if any(default.is_interpolation() for default in defaults):
            return map_of_choices(overrides, defaults, self_added)
        return None

    defaults_list._create_interpolation_map = map_where_it_is_used
    # Nothing changes the copy, which takes half of the time.
    ConfigStore.__deepcopy__ = lambda store, _: store
    Hydra.get_mode = lambda *_, **__: None


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
