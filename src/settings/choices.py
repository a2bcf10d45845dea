"""Check of the options that overrides choose, before Hydra composes the settings.

Without this check, Hydra ends `<group>=null` with an error that names no setting, and drops a required group
at `~<group>`.
"""

from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override

from .methods import options_of

WITHOUT_SETTINGS = ("scale", "recipe")
"""Groups whose options set other settings, and which have no settings themselves."""


def check_choices(overrides: Sequence[str]) -> None:
    """Check that each override names a setting, and that each choice names an option of its group.

    Args:
        overrides: Words of a command line; flags of Hydra are ignored.

    Raises:
        ValueError: if an override has no name, sets a group to something other than an option, or drops a
            group that every run needs.
        hydra.errors.OverrideParseException: if a word is not an override.
    """
    words = [word for word in overrides if not word.startswith("-") and ("=" in word or word.startswith("~"))]
    parsed = OverridesParser.create().parse_overrides(words)
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
