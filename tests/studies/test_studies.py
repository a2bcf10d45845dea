"""The studies use the package and not the reverse; every example in their docstrings holds."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import studies

pytestmark = pytest.mark.pages

MODULES = [module.name for module in pkgutil.walk_packages(studies.__path__, "studies.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in(name):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    assert doctest.testmod(importlib.import_module(name), optionflags=flags).failed == 0


def test_the_package_imports_no_study():
    for path in (Path(__file__).parents[2] / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "studies"], path
