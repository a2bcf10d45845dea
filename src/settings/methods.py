"""Folders of Hydra's options, and tables of the settings that papers ran.

Every option is a file in Hydra's search path: `configs/<group>/<option>.yaml`, or for a method outside the
core `contrib/<method>/configs/<group>/<option>.yaml`. `MethodFolders` adds the folders of methods to the
search path, so that no list names a method, and deleting a folder removes its experiments, options and
recipes.

The settings that a paper ran are in a table, `configs/papers/<paper>.yaml` or `contrib/<method>/paper.yaml`:
setting → value and place, of the paper and of its authors' code. A table sets nothing:
`scripts/methods_page.py` compares the table with the composed settings.
"""

from importlib.resources import files
from pathlib import Path
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

CONTRIB = Path(__file__).parents[1] / "contrib"


def configs() -> Path:
    """Return the folder of the configuration tree."""
    return Path(str(files("tagrpo.configs")))


def method_configs() -> list[Path]:
    """Return the option folders of the methods in `contrib`."""
    return sorted(CONTRIB.glob("*/configs"))


class MethodFolders(SearchPathPlugin):
    """Hydra plugin that adds the options of the methods in `contrib` to the search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append each method's folder of options."""
        for folder in method_configs():
            search_path.append(provider="tagrpo.contrib", path=f"file://{folder}")


def options_of(group: str) -> dict[str, str]:
    """Return the YAML text of each option of a group, in `configs` and method folders, sorted by name."""
    found = {}
    for folder in (configs(), *method_configs()):
        for path in (folder / group).glob("*.yaml"):
            found[path.stem] = path.read_text()
    return dict(sorted(found.items()))


def experiments() -> list[str]:
    """Return the names of all experiments."""
    return [name for name in options_of("experiment") if name != "none"]


def tables() -> dict[str, Path]:
    """Return the file with the values of each paper, by name of the paper or method."""
    core = {path.stem: path for path in sorted((configs() / "papers").glob("*.yaml"))}
    return core | {path.parent.name: path for path in sorted(CONTRIB.glob("*/paper.yaml"))}


def read_paper(path: Path) -> dict[str, Any]:
    """Read a file with the values of a paper."""
    content: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    return dict(content)


def recipes_of(paper: str) -> list[str]:
    """Return the recipes that have settings for a paper: `paper`, `authors`, both or neither."""
    options = options_of(f"settings/{paper}")
    return [recipe for recipe in ("paper", "authors") if recipe in options]


if MethodFolders not in Plugins.instance().discover(SearchPathPlugin):
    Plugins.instance().register(MethodFolders)
