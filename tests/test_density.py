"""The core leaves room to read, as `scripts/density.py` counts it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.loading import script

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))


density = script("density")


@pytest.mark.parametrize(
    ("source", "kinds"),
    [
        ("a = 1\nb = 2\n", {}),
        ("x = [[b for b in a] for a in c]\n", {"comprehensions": 2}),
        ("x = sum(a for a in b) + len({a: 1 for a in b}) + len({a for a in b})\n", {"comprehensions": 3}),
        ("x = 1 if a else 2 if b else 3\n", {"conditionals": 2}),
        ("if (x := f()) and (y := g()):\n    pass\n", {"walruses": 2}),
        ("a, b = c, d\n", {"parallel": 1}),
        ("[a, b] = c = d, e\n(x, y), z = f(), 1\n", {"parallel": 2}),
        ("a, b = f()\nc = 1, 2\nx = y = 0\nfor i, j in k:\n    pass\n", {}),
    ],
)
def test_each_kind_is_counted(source, kinds):
    found = density.Density()
    found.count(source)
    dense = {name: value for name, value in vars(found).items() if value and name != "statements"}
    assert dense == kinds
    assert found.per_thousand == pytest.approx(1000 * sum(kinds.values()) / found.statements)


def test_statements_within_others_count():
    found = density.Density()
    found.count("def f():\n    if a:\n        return 1\n    return 2\n")
    assert found.statements == 4
    found.count("x = 1\n")
    assert found.statements == 5


def test_long_lines_are_named(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("x = 1\n" + "y" * 110 + "\n" + "é" * 111 + "\n")
    assert density.long_lines([path]) == [f"{path}:3"]
    assert density.densities().keys() == {"Core", "Shell", "Removable"}


def test_the_core_leaves_room_to_read():
    found = density.densities()["Core"]
    assert found.statements > 5000
    assert found.per_thousand <= density.MAX_CORE, "write dense expressions of the core as statements"


def test_few_lines_are_long():
    lines = density.long_lines(sorted((ROOT / "src").rglob("*.py")))
    assert len(lines) <= density.MAX_LONG_LINES
