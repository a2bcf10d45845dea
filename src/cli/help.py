"""`--help`: the files that a command's settings begin from, with their comments, and the options of groups."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ..settings.methods import configs
from ..settings.methods import options_of as texts_of

MORE = """
COMMAND … --cfg job                     the settings that a command would run with, every group composed
COMMAND … --cfg job --package data      the same of one group
COMMAND -m seed=0,1,2                   a run for each value, one after the other
eval "$(COMMAND -sc install=bash)"      completion of settings and options by the tab key, in bash
COMMAND --hydra-help                    the flags of Hydra, which composes the settings"""
_GROUP = re.compile(r"^  - (?:override )?(?:optional )?/?([\w/]+): ", re.MULTILINE)


def show_help(config: str, groups: list[str]) -> int:
    """Print the help of the command of a configuration, or the options of `groups`; return the exit code."""
    texts = list(texts_before(config))
    command = texts[0][2:].partition(":")[0]
    if groups:
        names = [group.partition("=")[0] for group in groups]
        rows = {f"{name}={option}": text for name in names for option, text in options_of(config, name).items()}
        for row, text in rows.items():
            print(f"  {row:<32}  {comment_of(text)}".rstrip())
        if not rows:
            print(f"No group {', '.join(groups)}: {command} --help lists the groups.")
        return 0 if rows else 1
    print(*texts, sep="\n")
    print(f"Set as name=value. Options of the groups (group=option; `{command} --help GROUP` says what they are):")
    for name in dict.fromkeys(_GROUP.findall("".join(texts))):
        if options := options_of(config, name):
            print(f"  {name}: {', '.join(options)}")
    print(MORE.replace("COMMAND", command))
    return 0


def texts_before(config: str) -> Iterator[str]:
    """The text of a configuration without Hydra's own section, and of those that it is made from."""
    text = (configs() / f"{config}.yaml").read_text().partition("\nhydra:")[0]
    yield text
    for name in re.findall(r"^  - (train)$", text, re.MULTILINE):
        yield from texts_before(name)
    if "  - scale: demo" in text:
        yield from texts_before("scale/demo")


def comment_of(option: str) -> str:
    """The first line of an option's comment, without a command in front; else the path that the option sets."""
    for line in option.splitlines():
        text = re.sub(r"^# (?:(?:tagrpo-|make )\S.*?(?:\s{2,}|$))?", "", line)
        if line.startswith("# ") and text and not text.startswith("@package"):
            return text
        if line.startswith("path: "):
            return line.removeprefix("path: ")
    return ""


def options_of(config: str, group: str) -> dict[str, str]:
    """Option → its text, of a group of a command's configuration."""
    found = texts_of((Path(config).parent / group).as_posix())
    return {option: text for option, text in found.items() if option != "base"}
