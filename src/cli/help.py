"""`--help`: the files that a command's settings begin from, with their comments, and the options of groups."""

from __future__ import annotations

import re
from pathlib import Path

from ..settings.methods import configs, options_of

MORE = """
COMMAND … --cfg job                     the settings that a command would run with, every group composed
COMMAND -m seed=0,1,2                   a run for each value, one after the other
eval "$(COMMAND -sc install=bash)"      completion of settings and options by the tab key, in bash
COMMAND --hydra-help                    the flags of Hydra, which composes the settings"""
_GROUP = re.compile(r"^  - (?:override )?(?:optional )?/?([\w/]+): ", re.MULTILINE)


def show_help(config: str, words: list[str]) -> None:
    """Print the help of the command of a configuration, or the options of the groups among `words`."""
    text, folder = text_of(config), Path(config).parent
    command = text[2:].partition(":")[0]
    known = {name: options_of((folder / name).as_posix()) for name in dict.fromkeys([*_GROUP.findall(text), *words])}
    options = {name: known[name] for name in words if known[name]} or known
    if options is not known:
        for name, texts in options.items():
            for option, content in texts.items():
                said = [line for line in content.splitlines() if re.match(r"# (?!@package)", line)]
                print(f"  {f'{name}={option}':<32}  {said[0][2:] if said else ''}".rstrip())
        return
    print(text)
    print(f"Set as name=value. Options of the groups (group=option; `{command} --help GROUP` says what they are):")
    for name, texts in options.items():
        if names := [option for option in texts if option != "base"]:
            print(f"  {name}: {', '.join(names)}")
    print(MORE.replace("COMMAND", command))


def text_of(config: str) -> str:
    """The text of a configuration without its section for Hydra, followed by those of its bases."""
    text = (configs() / f"{config}.yaml").read_text().partition("\nhydra:")[0]
    bases = {"train": r"^  - train$", "scale/demo": "^  - scale: demo"}
    return "\n".join([text, *(text_of(name) for name, line in bases.items() if re.search(line, text, re.MULTILINE))])
