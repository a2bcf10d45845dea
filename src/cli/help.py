"""`--help`: what a command does, its settings and groups, read from the comments of its YAML files."""

from __future__ import annotations

import re
from pathlib import Path
from shutil import get_terminal_size

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..settings.methods import configs
from ..settings.methods import options_of as texts_of

HIDDEN = ("hydra", "settings", "_self_", "defaults")
MORE = {
    "COMMAND … --cfg job": "the settings that a command would run with, every group composed",
    "… --cfg job --package data": "the same of one group",
    "COMMAND -m seed=0,1,2": "a run for each value, one after the other",
    'eval "$(COMMAND -sc install=bash)"': "completion of settings and options by the tab key, in bash",
    "COMMAND --hydra-help": "the flags of Hydra, which composes the settings",
}
_DEFAULT = re.compile(
    r"  - (?:override )?(?:optional )?/?(?P<name>[\w/]+)(?:@[\w.]+)?(?:: (?P<value>\S+))?(?:\s+# (?P<comment>.*))?"
)
_SETTING = re.compile(r"(?P<name>\w+): *(?P<value>[^#]*?)(?:\s+# (?P<comment>.*))?")

Described = dict[str, tuple[str, str]]
"""Name → its default, and its comment."""


def show_help(config: str, groups: list[str]) -> int:
    """Print the help of the command of a configuration, or the options of `groups`; return the exit code."""
    console = Console(width=max(get_terminal_size((120, 24)).columns, 60), highlight=False, markup=False)
    head = head_of(configs() / f"{config}.yaml")
    command = head.partition(":")[0]
    if groups:
        names = [group.partition("=")[0] for group in groups]
        found = [(name, option, text) for name in names for option, text in options_of(config, name).items()]
        rows = [(f"{name}={option}", comment_of(text)) for name, option, text in found]
        console.print(_grid(rows) if rows else f"No group {', '.join(groups)}: {command} --help lists the groups.")
        return 0 if rows else 1
    defaults, settings = described(configs(), config)
    console.print(head, "", "Settings (name=value):", sep="\n", soft_wrap=True)
    console.print(_grid([(f"{name}={value}", comment) for name, (value, comment) in settings.items()]))
    console.print(f"\nGroups (group=option; `{command} --help GROUP` says what the options are):")
    rows = []
    for name, (value, comment) in defaults.items():
        if options := options_of(config, name):
            rows.append((f"{name}={value}", f"{comment}\n{', '.join(options)}"))
    console.print(_grid(rows))
    console.print("\nMore:", _grid([(line.replace("COMMAND", command), text) for line, text in MORE.items()]), sep="\n")
    return 0


def _grid(rows: list[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2), pad_edge=True)
    grid.add_column(min_width=32, overflow="fold")
    for row in rows:
        grid.add_row(*map(Text, row))
    return grid


def comment_of(option: str) -> str:
    """The first line of an option's comment, without a command in front; else the path that the option sets."""
    for line in option.splitlines():
        text = re.sub(r"^# (?:(?:tagrpo-|make )\S.*?(?:\s{2,}|$))?", "", line)
        if line.startswith("# ") and text and not text.startswith("@package"):
            return text
        if line.startswith("path: "):
            return line.removeprefix("path: ")
    return ""


def head_of(path: Path) -> str:
    """The comment that a configuration begins with."""
    comment = path.read_text().partition("\ndefaults:")[0]
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in comment.splitlines())


def described(root: Path, config: str) -> tuple[Described, Described]:
    """The groups and the settings of `<root>/<config>.yaml` and of the configurations that it is made from."""
    groups: Described = {}
    settings: Described = {}
    inherited: list[str] = []
    in_defaults = False
    for line in (root / f"{config}.yaml").read_text().splitlines():
        in_defaults = line.startswith("defaults:") or (in_defaults and line.startswith(" "))
        match = (_DEFAULT if in_defaults else _SETTING).fullmatch(line)
        if match is None or match["name"] in HIDDEN:
            continue
        if in_defaults and match["value"] is None:
            inherited.append(match["name"])
        elif in_defaults:
            groups[match["name"]] = (match["value"], match["comment"] or "")
            if match["name"] == "scale":
                groups |= {
                    name: found for name, found in described(root, "scale/demo")[0].items() if name not in groups
                }
        elif match["comment"]:
            settings[match["name"]] = (match["value"], match["comment"])
    for name in inherited:
        more_groups, more_settings = described(root, name)
        groups = more_groups | groups
        settings |= {name: found for name, found in more_settings.items() if name not in settings}
    return groups, settings


def options_of(config: str, group: str) -> dict[str, str]:
    """Option → its text, of a group of a command's configuration."""
    found = texts_of((Path(config).parent / group).as_posix())
    return {option: text for option, text in found.items() if option != "base"}
