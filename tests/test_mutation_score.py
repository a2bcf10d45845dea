"""The list of mutants that no test can notice is about the code as it stands."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.pages

ROOT = Path(__file__).parents[1]
ENTRIES = yaml.safe_load((ROOT / "scripts" / "mutation_survivors.yaml").read_text())


def test_every_explained_mutant_changes_a_line_that_is_there():
    assert len({entry["reason"] for entry in ENTRIES}) == len(ENTRIES)
    for file, where, old, new, *_ in (mutant for entry in ENTRIES for mutant in entry["mutants"]):
        source = (ROOT / file).read_text()
        part = ast.parse(source)
        for name in filter(None, where.split(".")):
            (part,) = [node for node in part.body if getattr(node, "name", None) == name]
        lines = {line.strip() for line in source.splitlines()}
        assert old in lines, (file, old)
        assert new not in lines - {old}, (file, new)
