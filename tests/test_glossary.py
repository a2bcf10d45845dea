"""The glossary, a page of the site, explains every metric that a run logs and every setting."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.loading import script

pytestmark = pytest.mark.pages

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def glossary():
    return script("glossary")


@pytest.fixture(scope="module")
def page(glossary):
    return glossary.page()


def names_in(path):
    """Keys of dictionaries with a slash in them: that is how names of metrics are made."""
    for node in ast.walk(ast.parse(path.read_text())):
        keys = (
            node.keys
            if isinstance(node, ast.Dict)
            else [node.slice]
            if isinstance(node, ast.Subscript)
            else []
        )
        values = [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
        yield from (value for value in values if re.fullmatch(r"[a-z_@]+(/[a-z_@]+)+", value))


def test_every_name_that_the_code_logs_has_an_entry(glossary):
    known = [pattern for metric in glossary.metrics() for pattern in glossary.patterns(metric.names)]
    folders = (ROOT / "src" / name for name in ("callbacks", "modules", "rollouts"))
    logged = {name for folder in folders for path in folder.rglob("*.py") for name in names_in(path)}
    assert len(logged) > 25
    assert sorted(name for name in logged if not any(pattern.fullmatch(name) for pattern in known)) == []


def test_names_with_braces_and_placeholders_stand_for_several(glossary):
    patterns = list(glossary.patterns("`train/{loss,kl}` and `pass@k/<split>/<k>`"))
    names = ["train/loss", "train/kl", "pass@k/amc/8", "pass@k/8", "train/lr"]
    assert [any(pattern.fullmatch(name) for pattern in patterns) for name in names] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_every_setting_has_a_meaning(page):
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 200
    assert [row for row in rows if row.endswith("|  |")] == []


def test_a_setting_of_several_parts_has_the_meaning_of_each(page):
    sections = page.split("### ")
    (alpha, other) = (
        next(s for s in sections if s.startswith(f"credit={name}\n"))
        for name in ("entropy_shaped", "zero_variance")
    )
    assert "the paper's is 0.4 with GRPO" in alpha
    assert "the paper tries 0.05 to 0.3" in other
