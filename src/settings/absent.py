"""`<group>=null` and `~<group>` on a command line: none of a group's options, where a run can do without the group.

By itself, Hydra ends `<group>=null` with an error that names no setting, drops even a group that the run needs with
`~<group>`, and keeps what experiments and recipes set in the group.
"""

from collections.abc import Sequence
from dataclasses import replace

from hydra._internal import defaults_list
from hydra._internal.config_repository import IConfigRepository
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import ConfigCompositionException

from .methods import options_of

NEEDED = (
    "advantage", "loss", "optimizer", "policy", "scale", "recipe", "model", "template", "reward", "rollout", "trainer",
    "strategy", "data", "launcher", "rephraser", "source",
)  # fmt: skip
"""Groups of which every run has an option."""
WITHOUT_SETTINGS = ("scale", "recipe")
"""Groups whose options set other settings, so that they have none of their own."""
PLACES = {name: name for name in ("lora", "credit", "mismatch", "callbacks", "logger")} | {
    "curriculum": "data.curriculum",
    "dynamic_sampling": "rollout.dynamic_sampling",
    "reward_terms": "rollout.reward_terms",
}
"""Optional group → the setting that is null without it. Other optional groups are left out of the defaults list."""


class Overrides(defaults_list.Overrides):
    """Hydra's overrides, where the last override of a group may say that it is not used."""

    def __init__(self, repo: IConfigRepository, overrides_list: Sequence[Override]) -> None:
        if unnamed := [o.input_line for o in overrides_list if not o.key_or_group]:
            raise ConfigCompositionException(
                f"Expected name=value, but got {unnamed[0]}. Write a setting before the =."
            )
        for each in overrides_list:
            if repo.group_exists(each.key_or_group) and not _names_options(each):
                raise ConfigCompositionException(
                    f"Expected {each.key_or_group} to be the name of an option, but got {each.input_line}. "
                    f"`--help {each.key_or_group}` lists the options."
                )
        last = {(o.key_or_group, o.package): o for o in overrides_list if repo.group_exists(o.key_or_group)}
        none = {key: o for key, o in last.items() if o.is_delete() or o.value() in (None, "none", [])}
        others = [
            o for o in overrides_list if (key := (o.key_or_group, o.package)) not in none and o is last.get(key, o)
        ]
        made = {o.key_or_group.partition(".")[0] for o in overrides_list if o.is_add()}  # groups filled by hand
        left = [o if o.key_or_group in made and o.is_delete() else _left_out(o) for o in none.values()]
        super().__init__(repo, [*others, *(override for override in left if override.is_delete())])
        self.config_overrides[:0] = [override for override in left if not override.is_delete()]


def _names_options(override: Override) -> bool:
    """Return whether an override of a group has the name of an option, several names, null or its own settings."""
    if override.is_sweep_override():
        return True
    value = override.value()
    if isinstance(value, list):
        return all(isinstance(name, str) for name in value)
    group = override.key_or_group
    return value is None or isinstance(value, str) or (isinstance(value, dict) and group not in WITHOUT_SETTINGS)


def _left_out(override: Override) -> Override:
    group = override.key_or_group
    if group in NEEDED:
        options = [name for name in options_of(group) or options_of(f"comparisons/{group}") if name != "base"]
        raise ConfigCompositionException(
            f"Expected {group} to be one of {', '.join(options)}, since every run needs one, but got "
            f"{override.input_line}. Choose one, or leave it out for the default."
        )
    if group in PLACES and override.package is None:
        return replace(override, type=OverrideType.FORCE_ADD, key_or_group=PLACES[group], _value=None)
    return replace(override, type=OverrideType.DEL, _value=None)


def register() -> None:
    """Make Hydra use `Overrides`."""
    defaults_list.Overrides = Overrides  # type: ignore[misc]
