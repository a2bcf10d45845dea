"""The rooms of `src` and their rings in docs/architecture.md, as the folders and the imports have them.

python scripts/rooms.py     # write the sections of the page

A room is a folder whose docstring begins with its ring: `Core: `, `Shell: ` or `Removable: `. Files and
folders below it belong to it, unless a folder among them names a ring itself.
"""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

from tagrpo.files import write_section

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"
PAGE = ROOT / "docs" / "architecture.md"
RINGS = ("Core", "Shell", "Removable")
"""From the inside outwards. A room imports from rooms of its own ring and of rings before it."""
BASE = "."
"""The room of the files that lie in `src` itself."""


class Stage(NamedTuple):
    """A part of the core's reading order."""

    title: str
    """Heading of the stage."""
    files: list[str]
    """Files to read, relative to `SRC`, in order."""
    beside: list[str]
    """Files that these use, which can wait."""


STAGES = [
    Stage(
        "What flows, and what can be plugged in",
        ["types/data.py", "types/learning.py", "types/protocols.py"],
        ["types/checks.py", "types/fields.py"],
    ),
    Stage(
        "From questions to prompts",
        [
            "datamodules/sources/base.py",
            "datamodules/sources/table.py",
            "datamodules/templates/base.py",
            "datamodules/prompts.py",
            "datamodules/memory.py",
        ],
        [
            "datamodules/loader.py",
            "datamodules/sources/rows.py",
            "datamodules/sources/files.py",
            "datamodules/sources/hub.py",
            "datamodules/sources/catalogue.py",
            "datamodules/sources/concatenated.py",
            "datamodules/sources/rephrasings.py",
            "datamodules/sources/rephrasing_rows.py",
            "datamodules/templates/augmentation.py",
            "datamodules/control_tokens.py",
            "datamodules/hidden_text.py",
            "datamodules/overlap.py",
            "datamodules/prompt_check.py",
            "datamodules/report.py",
        ],
    ),
    Stage(
        "From prompts to scored responses",
        [
            "rollouts/pipeline.py",
            "rollouts/engines/transformers.py",
            "rollouts/engines/vllm.py",
            "rollouts/scoring.py",
            "rollouts/dynamic_sampling.py",
            "rollouts/ahead.py",
        ],
        [
            "rollouts/engines/base.py",
            "rollouts/engines/synced.py",
            "rollouts/engines/cached.py",
            "rollouts/engines/weight_stream.py",
            "rollouts/responses.py",
        ],
    ),
    Stage(
        "From a response to its reward",
        [
            "rewards/workers.py",
            "rewards/math.py",
            "rewards/response.py",
            "rewards/extraction.py",
            "rewards/canonical.py",
            "rewards/functions.py",
            "rewards/terms.py",
        ],
        [
            "rewards/comparison.py",
            "rewards/plain_answer.py",
            "rewards/multiple_choice.py",
            "rewards/reading.py",
            "rewards/latex.py",
            "rewards/forms.py",
            "rewards/values.py",
            "rewards/units.py",
            "rewards/arithmetic.py",
            "rewards/equivalence.py",
            "rewards/sandbox.py",
            "rewards/child_environment.py",
            "rewards/child_process.py",
            "rewards/checked_function.py",
        ],
    ),
    Stage(
        "From scored responses to optimizer steps",
        [
            "modules/update.py",
            "modules/advantages/pools.py",
            "modules/advantages/group.py",
            "modules/advantages/pass_at_k.py",
            "modules/experience.py",
            "modules/mismatch.py",
            "modules/losses.py",
        ],
        [
            "modules/update_stats.py",
            "modules/credit/assign.py",
            "modules/advantages/difficulty.py",
            "modules/advantages/based.py",
            "modules/policy/schedule.py",
        ],
    ),
    Stage(
        "Log-probs of the policy",
        [
            "modules/policy/logprobs.py",
            "packing/tree.py",
            "packing/batch.py",
            "packing/policy.py",
            "packing/attention.py",
            "packing/head.py",
        ],
        [
            "modules/policy/model.py",
            "packing/noise.py",
            "packing/trl.py",
            "modules/policy/lora.py",
            "modules/policy/sharding.py",
            "modules/policy/flop.py",
        ],
    ),
    Stage(
        "Metrics",
        ["metrics/means.py", "metrics/functional/groups.py", "metrics/functional/pass_at_k.py"],
        ["metrics/functional/diversity.py", "metrics/functional/statistics.py", "metrics/evaluation.py"],
    ),
    Stage(
        "Helpers",
        ["distributed.py", "seeds.py", "files.py", "foreign.py"],
        ["digests.py", "redaction.py", "overrides.py"],
    ),
]
"""All files of the core, in the order in which a batch meets them."""


@cache
def first_line(path: Path) -> str:
    """Return the first line of a file's docstring; empty if it has none."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def named_ring(folder: Path) -> str | None:
    """Return the ring that the docstring of a folder begins with; None if it begins with none."""
    path = folder / "__init__.py"
    ring = first_line(path).partition(":")[0] if path.exists() else ""
    return ring if ring in RINGS else None


def room_of(path: Path) -> str:
    """Return the room of a file or folder below `SRC`, as a path relative to `SRC`.

    Raises:
        ValueError: if a folder directly below `SRC` names no ring.
    """
    folder = path if path.is_dir() else path.parent
    while named_ring(folder) is None:
        if SRC in (folder, folder.parent):
            raise ValueError(
                f"Expected the docstring of {folder}/__init__.py to begin with one of {', '.join(RINGS)} and a "
                f"colon, but it begins with {first_line(folder / '__init__.py')[:40]!r}. Name its ring."
            )
        folder = folder.parent
    return folder.relative_to(SRC).as_posix()


def ring_of(room: str) -> str:
    """Return the ring of a room."""
    ring = named_ring(SRC / room)
    assert ring is not None, room
    return ring


def imported(path: Path) -> Iterator[Path]:
    """Yield the files and folders of the package that a file imports, also for type checking alone."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        modules: list[list[str]] = []
        if isinstance(node, ast.ImportFrom):
            base = [] if node.level == 0 else ["tagrpo", *path.relative_to(SRC).parts[:-1]]
            base = base[: len(base) - node.level + 1] if node.level else base
            named = [*base, *(node.module or "").split(".")] if node.module else base
            modules = [[*named, alias.name] for alias in node.names]
        elif isinstance(node, ast.Import):
            modules = [alias.name.split(".") for alias in node.names]
        for package, *parts in modules:
            if package == "tagrpo":
                yield _file(parts)


def _file(parts: list[str]) -> Path:
    """Return the file or folder of a dotted name, the last part of which may be a name inside a module."""
    path = SRC.joinpath(*parts)
    if path.is_dir() or path.with_suffix(".py").exists():
        return path if path.is_dir() else path.with_suffix(".py")
    path = path.parent
    return path if path.is_dir() else path.with_suffix(".py")


def rooms() -> dict[str, set[str]]:
    """Return room → the rooms that it imports from, those that import from nobody first.

    Raises:
        ValueError: if rooms import from each other in a circle.
    """
    used: dict[str, set[str]] = {}
    for path in sorted(SRC.rglob("*.py")):
        room = room_of(path)
        used.setdefault(room, set()).update(room_of(other) for other in imported(path))
    for room, others in used.items():
        others.discard(room)
    list(TopologicalSorter(used).static_order())  # refuses circles
    order = sorted(used, key=lambda room: (RINGS.index(ring_of(room)), len(reached(room, used)), room))
    return {room: used[room] for room in order}


def reached(room: str, used: dict[str, set[str]]) -> set[str]:
    """Return all rooms that a room imports from, also through others."""
    return used[room].union(*(reached(name, used) for name in used[room]))


def core_files() -> list[str]:
    """Return the files of the core, relative to `SRC`, without those that only name a folder."""
    files = [path for path in sorted(SRC.rglob("*.py")) if ring_of(room_of(path)) == "Core"]
    return [path.relative_to(SRC).as_posix() for path in files if path.name != "__init__.py"]


def node(room: str) -> str:
    """Return the name of a room in the drawing; Mermaid reads a slash as a part of a shape."""
    return room.replace("/", "_")


def section() -> str:
    """Return a drawing of the rooms by ring, without implied arrows, and a list of the rooms outside the core."""
    used = {room: others - {BASE} for room, others in rooms().items() if room != BASE}
    drawing = ["```mermaid", "flowchart TD"]
    for ring in reversed(RINGS):
        members = [room for room in reversed(used) if ring_of(room) == ring]
        nodes = [f'        {node(room)}["{room}"]' for room in members]
        drawing.extend([f"    subgraph {ring}", *nodes, "    end"])
    for room in reversed(used):
        follows = set().union(*(reached(other, used) for other in used[room]))
        drawing.extend(f"    {node(room)} --> {node(name)}" for name in sorted(used[room] - follows))
    table = ["| room | what it has |", "|---|---|"]
    for room in used:
        if ring_of(room) != "Core":
            text = first_line(SRC / room / "__init__.py").partition(": ")[2]
            table.append(f"| [`{room}/`](../src/{room}) | {text} |")
    return "\n".join([*drawing, "```", "", *table])


def reading() -> str:
    """Return the core's files in reading order: a numbered list for each stage, and the files that can wait.

    Raises:
        ValueError: if `STAGES` lacks a file of the core, or names another.
    """
    named = [name for stage in STAGES for name in [*stage.files, *stage.beside]]
    if differing := sorted(set(core_files()) ^ set(named)):
        names = ", ".join(differing)
        raise ValueError(f"Expected STAGES to have each file of the core, but it differs in {names}.")
    lines = []
    for stage in STAGES:
        lines.extend([f"**{stage.title}**", ""])
        lines.extend(f"1. [`{name}`](../src/{name}): {first_line(SRC / name)}" for name in stage.files)
        beside = ", ".join(f"[`{name}`](../src/{name})" for name in stage.beside)
        lines.extend(["", f"Then {beside}.", ""])
    return "\n".join(lines[:-1])


def main() -> None:
    """Console entry point."""
    write_section(PAGE, "rooms", section())
    write_section(PAGE, "reading", reading())


if __name__ == "__main__":
    main()
