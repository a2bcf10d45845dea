"""Find the source code that classes depend on: their modules, and all modules that these import."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import NamedTuple

LOADERS = {"import_module", "__import__"}
"""Functions that import the module that their first argument names."""
HIDDEN = {"spec_from_file_location", "exec_module", "run_path", "run_module", "SourceFileLoader"}
"""Names of functions that run code which the source does not name."""


class Sources(NamedTuple):
    """Code that a set of modules depends on."""

    digests: dict[str, str]
    """Module → digest of its file; installed package → its version."""
    open: list[str]
    """Modules outside this package that load, at run time, code that their source does not name; sorted."""


def sources_of(modules: Iterable[str]) -> Sources:
    """Follow the imports of modules, including those within functions, without importing anything.

    Modules of the standard library are left out. An installed package is identified by its version, other
    code by the content of its files. Programs that a module starts, and files that it reads, are left out
    too.

    >>> found = sources_of(["tagrpo.rewards.math"])
    >>> "tagrpo.rewards.workers" in found.digests, "json" in found.digests, found.open
    (True, False, [])
    """
    digests: dict[str, str] = {}
    versions: dict[str, str] = {}
    hidden: set[str] = set()
    left = [parent for name in modules for parent in _with_parents(name)]
    while left:
        name = left.pop()
        top = name.partition(".")[0]
        if name in digests or top in versions or top in sys.stdlib_module_names:
            continue
        if (spec := _spec_of(name)) is None or not (origin := spec.origin) or not Path(origin).is_file():
            # an optional package that is not installed, a name within a module, or a folder without code
            continue
        if top != "tagrpo" and _is_installed(origin) and top in _versions():
            versions[top] = _versions()[top]
            continue
        content = Path(origin).read_bytes()
        digests[name] = hashlib.sha256(content).hexdigest()[:16]
        nodes = _nodes(content) if origin.endswith(".py") else []
        package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
        for imported in _imports(nodes, package):
            left += _with_parents(imported)
        if top != "tagrpo" and _loads_more(nodes):
            hidden.add(name)
    return Sources(dict(sorted({**digests, **versions}.items())), sorted(hidden))


def _with_parents(name: str) -> list[str]:
    """Return the packages that contain a module, whose code runs first, and the module itself."""
    parts = name.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def _spec_of(name: str) -> ModuleSpec | None:
    """Return the spec of a module without running the code of its packages."""
    path: list[str] | None = None
    for each in _with_parents(name):
        found = getattr(sys.modules.get(each), "__spec__", None)
        for finder in sys.meta_path if found is None else ():
            try:
                found = finder.find_spec(each, path)
            except KeyError:  # a folder without code within another one, which is not imported
                found = ModuleSpec(each, None, is_package=True)
            if found is not None:
                break
        if found is None:
            return None
        locations = found.submodule_search_locations
        if locations is None and each != name:
            return None
        if found.origin is None and path is not None:
            locations = [f"{folder}/{each.rpartition('.')[2]}" for folder in path]
        path = list(locations or [])
    return found


@cache
def _versions() -> dict[str, str]:
    """Return top-level module → version of the installed packages that provide the module."""
    found = packages_distributions()
    return {
        top: ", ".join(version(each) for each in sorted(set(packages))) for top, packages in found.items()
    }


def _is_installed(origin: str) -> bool:
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    names = {"site-packages", "dist-packages"}
    return any(origin.startswith(f"{folder}/") for folder in folders) or bool(names & set(Path(origin).parts))


def _nodes(content: bytes) -> list[ast.AST]:
    """Return the AST nodes of a source, without code for type checkers; empty if it is not Python."""
    try:
        left: list[ast.AST] = [ast.parse(content)]
    except (SyntaxError, ValueError, RecursionError):  # such a file could not be imported either
        return []
    found = []
    while left:
        node = left.pop()
        found.append(node)
        checked = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        left += node.orelse if isinstance(node, ast.If) and checked else ast.iter_child_nodes(node)
    return found


def _imports(nodes: Iterable[ast.AST], package: str) -> Iterator[str]:
    """Yield the modules that a source imports, and names that may be modules: `from package import name`."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute("." * node.level + (node.module or ""), package)
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.Call) and _named(node.func) in LOADERS:
            found = _absolute(_literal(node), package)
            if found:
                yield found


def _absolute(name: str, package: str) -> str | None:
    try:
        return importlib.util.resolve_name(name, package)
    except ImportError:  # beyond the top package
        return None


def _loads_more(nodes: Iterable[ast.AST]) -> bool:
    """Return whether a source calls functions that load code which the source does not name."""
    for node in nodes:
        if isinstance(node, ast.Call):
            name = _named(node.func)
            if name in HIDDEN or (name in LOADERS and not _literal(node)):
                return True
    return False


def _named(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _literal(call: ast.Call) -> str:
    """Return the first argument of a call if it is a text; otherwise an empty text."""
    first = call.args[0] if call.args else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
