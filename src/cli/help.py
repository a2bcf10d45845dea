"""`--help`: what a command does, its settings and groups, read from the comments of its YAML files."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from shutil import get_terminal_size

from ..settings.methods import configs
from ..settings.methods import options_of as texts_of

COMMANDS = {
    "train": "tagrpo-train",
    "evaluate": "tagrpo-eval",
    "plan": "tagrpo-plan",
    "rephrase": "tagrpo-rephrase",
    "comparisons/compare": "tagrpo-compare",
}
HIDDEN = ("hydra", "settings")
_DEFAULT = re.compile(
    r"  - (?:override )?(?:optional )?/?(?P<name>[\w/]+)(?:@[\w.]+)?(?:: (?P<value>\S+))?(?:\s+# (?P<comment>.*))?"
)
_SETTING = re.compile(r"(?P<name>\w+): *(?P<value>[^#]*?)(?:\s+# (?P<comment>.*))?")


def show_help(config: str, groups: list[str]) -> int:
    """Print the help of a command, or the options of `groups`; return the exit code."""
    root = configs()
    text = describe(root, config) if not groups else options_of(config, groups)
    print(text or f"There is no group {', '.join(groups)}. {COMMANDS[config]} --help lists the groups.")
    return 0 if text else 1


def describe(root: Path, config: str) -> str:
    """The help of a command whose configuration is `<root>/<config>.yaml`."""
    command = COMMANDS[config]
    groups, settings = collect(root, config)
    parts = [head(root / f"{config}.yaml"), "Settings (name=value):"]
    parts += [_line(f"{name}={value}", comment) for name, (value, comment) in settings.items()]
    parts += ["", f"Groups (group=option; `{command} --help GROUP` says what the options are):"]
    for name, (value, comment) in groups.items():
        names = sorted(options(config, name))
        if names:
            parts.append(_line(f"{name}={value}", comment))
            parts.append(textwrap.fill(", ".join(names), _width(), initial_indent=" " * 6, subsequent_indent=" " * 6))
    return "\n".join([*parts, "", *_line_of_options(command)])


def _line_of_options(command: str) -> Iterator[str]:
    yield "More:"
    yield _line(f"{command} … --cfg job", "the settings that a command would run with, every group composed")
    yield _line("… --cfg job --package data", "the same of one group")
    if command == "tagrpo-train":
        yield _line(f"{command} -m seed=0,1,2", "a run for each value, one after the other")
    yield _line(f'eval "$({command} -sc install=bash)"', "completion of settings and options by the tab key, in bash")
    yield _line(f"{command} --hydra-help", "the flags of Hydra, which composes the settings")


def options_of(config: str, groups: list[str]) -> str:
    """What the options of groups are, one line each; empty where there is no such group."""
    names = [group.partition("=")[0] for group in groups]
    found = [(group, option, text) for group in names for option, text in options(config, group).items()]
    return "\n".join(_line(f"{group}={option}", comment_of(text)) for group, option, text in found)


def comment_of(option: str) -> str:
    """The first line of an option's comment, without a command in front; else the path that the option sets."""
    for line in option.splitlines():
        text = re.sub(r"^# (?:(?:tagrpo-|make )\S.*?(?:\s{2,}|$))?", "", line)
        if line.startswith("# ") and text and not text.startswith("@package"):
            return text
        if line.startswith("path: "):
            return line.removeprefix("path: ")
    return ""


def head(path: Path) -> str:
    """The comment that a configuration begins with."""
    lines = []
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").removeprefix(" "))
    return "\n".join([*lines, ""])


def collect(root: Path, config: str) -> tuple[dict[str, tuple[str, str]], dict[str, tuple[str, str]]]:
    """Group → (default, comment), and setting → (default, comment), of a configuration and those it is made from."""
    groups: dict[str, tuple[str, str]] = {}
    settings: dict[str, tuple[str, str]] = {}
    inherited: list[str] = []
    in_defaults = False
    for line in (root / f"{config}.yaml").read_text().splitlines():
        in_defaults = line.startswith("defaults:") or (in_defaults and line.startswith(" "))
        match = (_DEFAULT if in_defaults else _SETTING).fullmatch(line)
        if match is None or match["name"] in (*HIDDEN, "_self_", "defaults"):
            continue
        if in_defaults and match["value"] is None:
            inherited.append(match["name"])
        elif in_defaults:
            groups[match["name"]] = (match["value"], match["comment"] or "")
            if match["name"] == "scale":
                groups |= {name: found for name, found in collect(root, "scale/demo")[0].items() if name not in groups}
        elif match["comment"]:
            settings[match["name"]] = (match["value"], match["comment"])
    for name in inherited:
        more_groups, more_settings = collect(root, name)
        groups = more_groups | groups
        settings |= {name: found for name, found in more_settings.items() if name not in settings}
    return groups, settings


def options(config: str, group: str) -> dict[str, str]:
    """Option → its text, of a group of a command's configuration."""
    found = texts_of((Path(config).parent / group).as_posix())
    return {option: text for option, text in found.items() if option != "base"}


def _width() -> int:
    return max(get_terminal_size((120, 24)).columns, 60)


def _line(left: str, comment: str) -> str:
    column = 34
    if len(left) + 2 >= column:
        left = f"  {left}\n" + " " * column if comment else f"  {left}"
    else:
        left = f"  {left}".ljust(column)
    first, _, rest = left.rpartition("\n")
    wrapped = textwrap.fill(comment, _width(), initial_indent=rest, subsequent_indent=" " * column) if comment else rest
    return f"{first}\n{wrapped}" if first else wrapped.rstrip()
