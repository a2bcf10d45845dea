"""The rooms of docs/architecture.md are those of the imports, and no two import from each other."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def rooms():
    spec = importlib.util.spec_from_file_location("rooms", ROOT / "scripts" / "rooms.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_draws_the_rooms_as_they_are(rooms):
    marked = f"<!-- begin rooms -->\n{rooms.section()}\n<!-- end rooms -->"
    assert marked in rooms.PAGE.read_text(), "run python scripts/rooms.py"


def test_imports_of_a_file_at_any_depth(rooms, tmp_path, monkeypatch):
    monkeypatch.setattr(rooms, "SRC", tmp_path)
    file = tmp_path / "callbacks" / "deep" / "one.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "from typing import TYPE_CHECKING\nimport torch\nfrom ...types import Prompt\nfrom ..shared import x\n"
        "if TYPE_CHECKING:\n    from ...settings import y\ndef f():\n    from ... import metrics, seeds\n"
    )
    assert sorted(rooms.imports(file)) == ["callbacks", "metrics", "seeds", "types"]


def test_rooms_that_import_from_each_other_are_refused(rooms, tmp_path, monkeypatch):
    monkeypatch.setattr(rooms, "SRC", tmp_path)
    for one, other in (("a", "b"), ("b", "a")):
        (tmp_path / one).mkdir()
        (tmp_path / one / "__init__.py").write_text(f"from ..{other} import x\n")
    with pytest.raises(ValueError, match="cycle"):
        rooms.rooms()


def test_what_follows_from_other_arrows_is_left_out(rooms, monkeypatch):
    used = {"types": set(), "metrics": {"types"}, "callbacks": {"metrics", "types"}}
    monkeypatch.setattr(rooms, "rooms", lambda: used)
    monkeypatch.setattr(rooms, "tenants", str.upper)
    drawn = rooms.section()
    assert "callbacks --> metrics" in drawn
    assert "callbacks --> types" not in drawn
    assert "| [`callbacks/`](../src/callbacks) | CALLBACKS | metrics, types |" in drawn
