"""Every example in a docstring of the studies."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import studies

MODULES = [module.name for module in pkgutil.walk_packages(studies.__path__, "studies.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in(name):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    assert doctest.testmod(importlib.import_module(name), optionflags=flags).failed == 0
