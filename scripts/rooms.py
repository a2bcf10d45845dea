"""The rooms of `src` in docs/architecture.md, as the imports have them.

python scripts/rooms.py     # write the section of the page
"""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from tagrpo.files import write_section

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"
PAGE = ROOT / "docs" / "architecture.md"


def imports(path: Path) -> Iterator[str]:
    """Rooms that a file imports from when it is imported or run; what only type checkers import does not count."""
    package = ("tagrpo", *path.relative_to(SRC).parts[:-1])
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level and node not in for_types:
            module = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
            yield from {[*filter(None, [*module, alias.name])][1] for alias in node.names}


def rooms() -> dict[str, set[str]]:
    """Room → the rooms that it imports from, those that import from nobody first."""
    used = {
        folder.name: {room for path in folder.rglob("*.py") for room in imports(path)} - {folder.name}
        for folder in sorted(SRC.iterdir())
        if (folder / "__init__.py").exists()
    }
    used = {room: {name for name in names if name in used} for room, names in used.items()}
    order = list(TopologicalSorter(used).static_order())  # refuses circles
    return {room: used[room] for room in sorted(order, key=lambda room: (len(reached(room, used)), room))}


def reached(room: str, used: dict[str, set[str]]) -> set[str]:
    """All rooms that a room imports from, those that do so through others included."""
    return used[room].union(*(reached(name, used) for name in used[room]))


def tenants(room: str) -> str:
    """The first line of a room's docstring."""
    return (ast.get_docstring(ast.parse((SRC / room / "__init__.py").read_text())) or "").partition("\n")[0]


def section() -> str:
    """A drawing of the rooms without the arrows that follow from others, and a table."""
    used = rooms()
    arrows = [
        f"    {room} --> {name}"
        for room in used
        for name in sorted(used[room])
        if not any(name in reached(other, used) for other in used[room])
    ]
    rows = [
        f"| [`{room}/`](../src/{room}) | {tenants(room)} | {', '.join(sorted(used[room])) or '–'} |"
        for room in reversed(used)
    ]
    head = ["| room of `src/` | who lives there | imports from |", "|---|---|---|"]
    return "\n".join(["```mermaid", "flowchart TD", *reversed(arrows), "```", "", *head, *rows])


def main() -> None:
    """Console entry point."""
    write_section(PAGE, "rooms", section())


if __name__ == "__main__":
    main()
