"""Compositions of settings in less time, for tests that make hundreds."""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from functools import cache, lru_cache

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

AT_THE_TOP = (
    "checkpoint",
    "data_path",
    "diagnose",
    "exact",
    "export",
    "iterations",
    "name",
    "resume",
    "seed",
    "test",
)
"""Settings without a point in their name that tests set most; none is a group of options."""
VALUE = re.compile(rf"(\w+(\.\w+)+|{'|'.join(AT_THE_TOP)})=")
"""Start of an override that sets a value of one setting and chooses no option."""


def remember() -> None:
    """Have `hydra.compose` compose equal choices of options once. Call this before others import `compose`.

    Hydra sets the values of single settings after it has composed all options. They are set here in the same way, on
    a copy of the composed options.
    """
    plain = hydra.compose

    @lru_cache(maxsize=1000)  # 60 KB each
    def composed(config: str, overrides: tuple[str, ...], places: tuple[str, ...]) -> bytes:
        return pickle.dumps(plain(config, list(overrides), return_hydra_config=True))

    def compose(
        config_name: str, overrides: Sequence[str] = (), return_hydra_config: bool = False
    ) -> DictConfig:
        if any("searchpath" in override for override in overrides):  # files of a test, which may change
            return plain(config_name, list(overrides), return_hydra_config)
        path = GlobalHydra.instance().config_loader().get_search_path().get_path()
        places = tuple(element.path for element in path)
        choices = tuple(override for override in overrides if not VALUE.match(override))
        cfg = pickle.loads(composed(config_name, choices, places))
        if len(choices) < len(overrides) and not set_values(cfg, overrides):
            cfg = pickle.loads(composed(config_name, tuple(overrides), places))
        if not return_hydra_config:
            with flag_override(cfg, ["struct", "readonly"], False):
                del cfg["hydra"]
        return cfg

    hydra.compose = compose


def set_values(cfg: DictConfig, overrides: Sequence[str]) -> bool:
    """Set the values of single settings in composed options.

    Args:
        cfg: What the overrides that are no `VALUE` compose. It is changed.
        overrides: All overrides.

    Returns:
        Whether `cfg` is what Hydra composes of all. It is not if a value is wrong, or if another override changes the
        same setting or a part that has it: their order matters then.
    """
    values = [override for override in overrides if VALUE.match(override)]
    others = [override for override in overrides if not VALUE.match(override)]
    # Hydra composes all options before it sets any value.
    others = [override for override in others if override.partition("=")[0] not in cfg.hydra.runtime.choices]
    if any(overlap(name_in(value), name_in(other)) for value in values for other in others):
        return False
    try:
        for override in map(parsed, values):
            if override.is_sweep_override():
                return False
            OmegaConf.update(cfg, override.key_or_group, override.value(), merge=True)
    except (HydraException, OmegaConfBaseException):
        return False
    own = [override for override in overrides if is_hydras(override)]
    others = [override for override in overrides if not is_hydras(override)]
    cfg.hydra.overrides.hydra, cfg.hydra.overrides.task = own, others
    cfg.hydra.job.override_dirname = ",".join(sorted(others))
    return True


def name_in(override: str) -> str:
    """Return the name of the setting that an override changes."""
    return re.split("[=@]", override.lstrip("+~"))[0].replace("/", ".")


def overlap(one: str, other: str) -> bool:
    """Check whether two names are equal, or one is that of a part that has the other."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def is_hydras(override: str) -> bool:
    """Check whether an override changes a setting of Hydra itself."""
    return override.lstrip("+~").startswith(("hydra.", "hydra/"))


@cache
def parsed(override: str) -> Override:
    """Return an override as Hydra reads it."""
    return OverridesParser.create().parse_override(override)


@cache
def parse() -> None:
    """Have Hydra compose the settings of a run once, so that forks of this process have its grammar and files."""
    with hydra.initialize_config_module("tagrpo.configs", version_base="1.3"):
        hydra.compose("train", ["experiment=grpo"])
