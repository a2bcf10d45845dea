"""Pytest plugin that runs the core's tests without the libraries of the shell, also where they are installed.

python -m pytest -p tests.without_shell     # `make test-core`

Left out are tests outside the folders of the core, those marked `shell`, and those that start processes, which would
import the libraries again. A property is tried on 10 examples; `make test` tries it on as many as Hypothesis does.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.loading import script

TESTS = Path(__file__).parent
LIBRARIES = {"lightning", "pytorch_lightning", "lightning_fabric", "hydra", "omegaconf"}
"""Libraries of the shell."""
BLOCKED = LIBRARIES | {"vllm"}
"""Libraries that are refused: vLLM too, which `rollouts/engines/vllm.py` imports when an engine is made."""


class WithoutShell:
    """Import finder that does not find `BLOCKED`."""

    def __init__(self, finder: Any) -> None:
        self.finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.finder, name)

    def find_spec(self, name: str, *where: Any) -> ModuleSpec | None:
        return None if name.partition(".")[0] in BLOCKED else self.finder.find_spec(name, *where)


def block() -> None:
    """Make `BLOCKED` look as if they were not installed."""
    sys.meta_path[:] = [WithoutShell(finder) for finder in sys.meta_path]


ROOMS = script("rooms")


def is_of_core(path: Path) -> bool:
    """Check that a folder or file of tests mirrors one of the core."""
    place = path.relative_to(TESTS)
    mirrored = ROOMS.SRC / place.with_name(place.name.removeprefix("test_"))
    if path.is_dir():
        return mirrored.is_dir() and ROOMS.ring_of(ROOMS.room_of(mirrored / "__init__.py")) == "Core"
    exists = mirrored.exists() if place.parent == Path() else mirrored.parent.is_dir()
    return exists and ROOMS.ring_of(ROOMS.room_of(mirrored)) == "Core"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Block the libraries before any conftest is imported."""
    loaded = sorted({name.partition(".")[0] for name in sys.modules} & BLOCKED)
    if loaded:
        raise pytest.UsageError(f"Expected no library of the shell to be imported yet, but got {loaded}.")
    block()


def pytest_configure(config: pytest.Config) -> None:
    """Deselect tests marked `shell`, `distributed` or `runs`; try fewer examples of a property."""
    settings.register_profile("brief", settings.get_profile("unhurried"), max_examples=10)
    settings.load_profile("brief")
    config.option.markexpr = f"({config.option.markexpr}) and not shell and not distributed and not runs"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out folders and test files of other rings."""
    if TESTS not in collection_path.parents:
        return None
    chosen = collection_path.is_dir() or collection_path.name.startswith("test_")
    return True if chosen and not is_of_core(collection_path) else None
