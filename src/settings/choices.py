"""Check of the options that overrides choose, before Hydra composes the settings.

Without this check, Hydra ends `<group>=null` with an error that names no setting, and drops a required group
at `~<group>`.
"""

import importlib.util
import re
from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from omegaconf import DictConfig, OmegaConf

from .methods import configs, options_of

WITHOUT_SETTINGS = ("scale", "recipe")
"""Groups whose options set other settings, and which have no settings themselves."""
RECORDED = ("notes",)
"""Settings that a run only records. Every type is accepted."""


def check_choices(overrides: Sequence[str]) -> None:
    """Check that each override names a setting, and that each choice names an option of its group.

    Args:
        overrides: Words of a command line; flags of Hydra are ignored.

    Raises:
        ValueError: if an override has no name, sets a group to something other than an option, or drops a
            group that every run needs.
        hydra.errors.OverrideParseException: if a word is not an override.
    """
    parsed = overrides_in(overrides)
    made = {override.key_or_group.partition(".")[0] for override in parsed if override.is_add()}
    for override in parsed:
        if not override.key_or_group:
            raise ValueError(
                f"Expected name=value, but got {override.input_line}. Write a setting before the =."
            )
        if override.is_delete() and override.key_or_group in made:
            continue  # a part of one's own stands in its place
        options = _options(override.key_or_group)
        if options and override.package is None:
            _check_choice(override, options)


def known_settings(config: str) -> list[str]:
    """Return the settings and groups at the top level of a command's configuration, such as `train`."""
    names = ["hydra"]
    for base in bases_of(config):
        content: Any = OmegaConf.load(configs() / f"{base}.yaml")
        names += [str(key) for key in content if key != "defaults"]
        names += groups_of(base)
    return list(dict.fromkeys(names))


def bases_of(config: str) -> list[str]:
    """Return a configuration and the configurations that it extends.

    `evaluate` and `plan` extend `train` and `scale/demo`. `train` extends `scale/demo`. Others extend none.
    """
    if config not in ("train", "evaluate", "plan"):
        return [config]
    return list(dict.fromkeys([config, "train", "scale/demo"]))


def groups_of(config: str) -> list[str]:
    """Return the groups in the defaults list of a configuration, in order."""
    content: Any = OmegaConf.load(configs() / f"{config}.yaml")
    entries = [entry for entry in content.get("defaults", []) if not isinstance(entry, str)]
    keys = [str(next(iter(entry))) for entry in entries]
    return [key.split()[-1].lstrip("/") for key in keys]


def check_names(words: Sequence[str], known: Sequence[str]) -> None:
    """Refuse overrides whose top-level name is a near miss of a name in `known`.

    Hydra would advise to add such a setting by `+`, but nothing would read the setting.

    Raises:
        ValueError: if there is such an override. The message has the override that was probably meant.
    """
    if any(word.startswith(("--config-", "-cd", "-cp", "-cn")) for word in words):
        return  # settings of a user's own may have any name
    for override in overrides_in(words):
        name = override.key_or_group
        first = re.split("[./@]", name)[0]
        close = get_close_matches(first, known, 1, cutoff=0.75)
        if first not in known and first not in RECORDED and close and not options_of(name):
            written = str(override.input_line)
            meant = written.lstrip("+~").replace(first, close[0], 1)
            raise ValueError(f"Expected the name of a setting, but got {written}. Did you mean {meant}?")


def check_added(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Refuse settings that overrides add (`+name=value`) and that nothing reads.

    A setting at the top level is read if another setting refers to it (`${name}`). A callback or logger is
    read if it has a `_target_`. Most other settings are arguments of a class, which `check_declared`
    compares.

    Args:
        cfg: The composed settings.
        overrides: Overrides of the command line.

    Raises:
        ValueError: if there is such a setting. The message names the most similar setting.
    """
    known = {*known_settings("train"), *known_settings("evaluate"), *known_settings("plan"), *RECORDED}
    for override in overrides_in(overrides):
        name = override.key_or_group
        adds = override.is_add() or override.is_force_add()
        if not adds or "/" in name or options_of(name):
            continue
        unread = _unread_part(cfg, name, known)
        if not unread:
            continue
        others = [other for other in _names(cfg) if not f"{other}.".startswith(f"{unread}.")]
        last = name.rpartition(".")[2]
        alike = [other for other in others if other.rpartition(".")[2] == last]
        close = get_close_matches(name, alike or others, 1, cutoff=0.0 if alike else 0.6)
        written = str(override.input_line)
        hint = f"Did you mean {close[0]}={written.partition('=')[2]}?" if close else f"Leave out {written}."
        raise ValueError(
            f"Expected {written} to add a setting that something reads, but nothing reads {unread}. {hint} A "
            "note for the record is +notes=…"
        )


def _unread_part(cfg: DictConfig, name: str, known: Collection[str]) -> str:
    """Return the first part of an added setting that nothing reads; empty if it may be read."""
    first, *others = name.split(".")
    if first not in known:
        referred = re.search(rf"[{{:,]\s*{re.escape(first)}\s*[.}},\[]", OmegaConf.to_yaml(cfg))
        return "" if referred else first
    section = cfg.get(first)
    if not others or not isinstance(section, DictConfig):
        return ""
    member = section.get(others[0])
    part = f"{first}.{others[0]}"
    if first in ("callbacks", "logger"):
        return part if isinstance(member, DictConfig) and "_target_" not in member else ""
    siblings = [str(key) for key in section if key != others[0]]
    is_slip = first == "model" and get_close_matches(others[0], siblings, 1, cutoff=0.75)
    return part if is_slip else ""


def _names(node: DictConfig, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of all settings, without resolving any."""
    for key in map(str, node):
        name = f"{prefix}.{key}" if prefix else key
        inside = None
        if not OmegaConf.is_missing(node, key) and not OmegaConf.is_interpolation(node, key):
            inside = node[key]
        if isinstance(inside, DictConfig):
            yield from _names(inside, name)
        else:
            yield name


def is_sweep(words: Sequence[str]) -> bool:
    """Return whether the words of a command line start several runs."""
    return "-m" in words or "--multirun" in words


def check_search(words: Sequence[str]) -> None:
    """Check that a search of settings runs as a sweep, and that its sweeper is installed.

    Raises:
        ValueError: if `-m` or the package is missing.
    """
    chosen = [override.value() for override in overrides_in(words) if override.key_or_group == "search"]
    shows = {"--cfg", "-c", "--info", "-i"} & set(words)  # the settings, without a run
    if "optuna" not in chosen or shows:
        return
    if not is_sweep(words):
        raise ValueError(
            "Expected -m with search=optuna, which starts one run after the other, but it is missing. Add -m."
        )
    if importlib.util.find_spec("hydra_plugins") is None or (
        importlib.util.find_spec("hydra_plugins.hydra_optuna_sweeper") is None
    ):
        raise ValueError(
            "Expected Optuna's plugin of Hydra for search=optuna, but it is not installed. Install it with "
            "`pip install 'tagrpo[search]'`."
        )


def overrides_in(words: Sequence[str]) -> list[Override]:
    """Return the overrides among the words of a command line.

    Raises:
        hydra.errors.OverrideParseException: if a word is not an override.
    """
    settings = [word for word in words if not word.startswith("-") and ("=" in word or word.startswith("~"))]
    return OverridesParser.create().parse_overrides(settings)


def _options(group: str) -> list[str]:
    """Return the options of a group of any command; empty if there is no such group."""
    found = options_of(group) or options_of(f"comparisons/{group}")
    return [option for option in found if option != "base"]  # what others are made of


def _check_choice(override: Override, options: list[str]) -> None:
    group = override.key_or_group
    value = override.value()
    chosen = value.list if isinstance(value, ChoiceSweep) else [value]  # -m credit=none,clip_cov
    left_out = override.is_delete() or None in chosen
    if left_out and "none" not in options:
        raise ValueError(
            f"Expected {group} to be one of {', '.join(options)}, since every run needs one, but got "
            f"{override.input_line}. Choose one, or leave it out for the default."
        )
    if left_out and not override.is_delete():
        raise ValueError(
            f"Expected {group}=none for a run without {group}, but got {override.input_line}. Write none."
        )
    if not override.is_delete() and not all(_names_options(each, group) for each in chosen):
        raise ValueError(
            f"Expected {group} to be the name of an option, but got {override.input_line}. `--help {group}` "
            "lists the options."
        )


def _names_options(value: object, group: str) -> bool:
    """Return whether a value of a group is an option's name, a list of names, or settings for the group."""
    if isinstance(value, list):
        return all(isinstance(name, str) for name in value)
    return isinstance(value, str) or (isinstance(value, dict) and group not in WITHOUT_SETTINGS)
