"""Hydra options that are not files of their own: the recipes of papers, and all of the methods in `contrib`.

A paper's values are entered once, with their places: in `configs/papers/<paper>.yaml`, or for a method outside the core
in `contrib/<method>/method.yaml`. The rows of four sections become the options `settings=<paper>/<recipe>`:

- `recipe` has the values of `recipe=paper` and `recipe=authors`; `scale` has those at `scale=paper`.
- `authors` and `authors_scale` have further values of `recipe=authors`.

A row's value is the paper's; if there is none, it is that of the authors' code. For `recipe=authors` the code comes
first. `here` replaces both, and `because` gives the reason. A section `<group>/<option>` has the content of the file of
that name; if such a file exists, in `configs` or on Hydra's search path, the file is used. Deleting a folder of
`contrib` removes its experiments, options and recipes.
"""

import re
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.core_plugins.structured_config_source import StructuredConfigSource
from hydra.core.config_store import ConfigStore
from hydra.plugins.config_source import ConfigLoadError, ConfigResult
from omegaconf import DictConfig, OmegaConf
from omegaconf._utils import get_yaml_loader

CONTRIB = Path(__file__).parents[1] / "contrib"


class _Loader(yaml.CSafeLoader):
    """Reads numbers as OmegaConf does, `1e-6` included."""

    yaml_implicit_resolvers = get_yaml_loader().yaml_implicit_resolvers


_OPTION = re.compile(r"^(?P<name>\w+(?:/\w+)+):\n(?P<text>(?:  .*\n|\n(?=  ))*)", re.MULTILINE)


def configs() -> Path:
    """Return the folder of the configuration tree."""
    return Path(str(files("tagrpo.configs")))


def method_files() -> dict[str, Path]:
    """Return paper or method → its file."""
    core = {path.stem: path for path in sorted((configs() / "papers").glob("*.yaml"))}
    return core | {path.parent.name: path for path in sorted(CONTRIB.glob("*/method.yaml"))}


@cache
def _sections(path: Path) -> dict[str, str]:
    """Return `<group>/<option>` → its text, as it would stand in a file."""
    return {match["name"]: textwrap.dedent(match["text"]) for match in _OPTION.finditer(path.read_text())}


def options_of(group: str) -> dict[str, str]:
    """Return option → text in YAML, of a group's files and of the methods that add to the group, sorted by name."""
    sections = [section for path in method_files().values() for section in _sections(path).items()]
    own = group.removeprefix("comparisons/")
    found = {name.rpartition("/")[2]: text for name, text in sections if name.rpartition("/")[0] == own}
    found |= {path.stem: path.read_text() for path in (configs() / group).glob("*.yaml")}
    return dict(sorted(found.items()))


def read(path: Path) -> dict[str, Any]:
    """Return a paper's file without its sections of options."""
    content = yaml.load(_OPTION.sub("", path.read_text()), Loader=_Loader)
    assert isinstance(content, dict)
    return content


def values_of(row: dict[str, Any], recipe: str) -> list[Any]:
    """Return the values of a row, beginning with the one that the recipe uses; empty if the row is open.

    >>> row = {"paper": 1, "authors": 2}
    >>> values_of(row, "paper"), values_of(row, "authors"), values_of(row | {"here": {"authors": 3}}, "authors")
    ([1, 2], [2, 1], [3, 1])
    >>> values_of({"open": "not stated"}, "paper"), values_of({"open": "not stated", "here": 4}, "paper")
    ([], [4])
    """
    here = row.get("here", {})
    if not isinstance(here, dict):
        return [here]
    stated = row | here
    order = ("authors", "paper") if recipe == "authors" else ("paper", "authors")
    return [stated[side] for side in order if side in stated]


def recipes_of(paper: dict[str, Any]) -> list[str]:
    """Return the recipes that set something for a paper: `paper`, `authors`, both or neither."""
    theirs = "authors" in paper or "authors_scale" in paper
    return ["paper"] * ("recipe" in paper or "scale" in paper) + ["authors"] * theirs


def recipe_nodes(name: str, paper: dict[str, Any]) -> Iterator[tuple[str, DictConfig]]:
    """Yield options of the group `settings` that a paper's rows make."""
    for recipe in recipes_of(paper):
        rows, scaled = paper.get("recipe", {}), paper.get("scale", {})
        if recipe == "authors":
            rows, scaled = rows | paper.get("authors", {}), scaled | paper.get("authors_scale", {})
        defaults = [*paper.get("options", []), {f"optional /settings/{name}/{recipe}_scale": "${scale}"}]
        yield f"{name}/{recipe}", _node(rows, recipe, {"defaults": defaults})
        yield f"{name}/{recipe}_scale/paper", _node(scaled, recipe)


def _node(rows: dict[str, dict[str, Any]], recipe: str, start: dict[str, Any] | None = None) -> DictConfig:
    node = OmegaConf.create(start or {})
    for key, row in rows.items():
        if values := values_of(row, recipe):
            OmegaConf.update(node, key, values[0])
    return node


class _NoSchema(StructuredConfigSource):
    def load_config(self, config_path: str) -> ConfigResult:
        raise ConfigLoadError(config_path)


def register() -> None:
    """Register all of these options with Hydra.

    Hydra would use a registered option as the schema of a file of the same name. Here the file replaces the option.
    """
    ConfigRepository.get_schema_source = lambda _: _NoSchema("schema", "structured://")  # type: ignore[assignment, method-assign]
    store = ConfigStore.instance()
    for name, path in method_files().items():
        for option, text in _sections(path).items():
            package = re.search(r"^# @package (\S+)", text, re.MULTILINE)
            group, _, option_name = option.rpartition("/")
            store.store(
                option_name, OmegaConf.create(yaml.load(text, Loader=_Loader)), group, package[1] if package else None
            )
        for option, node in recipe_nodes(name, read(path)):
            group, _, option_name = f"settings/{option}".rpartition("/")
            store.store(option_name, node, group, "_global_")
