"""Every example in a docstring."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import tagrpo
from tagrpo.verify.adapters import known_trainers

pytestmark = pytest.mark.pages

MODULES = [
    module.name
    for module in pkgutil.walk_packages(tagrpo.__path__, "tagrpo.")
    if "configs" not in module.name
]
WORKER_SCRIPT = (
    "tagrpo.rewards.sandbox"  # runs inside a worker of rewards, and imports its libraries when it starts
)
ADAPTERS = {f"tagrpo.verify.trainers.{name}" for name in known_trainers()}
"""Run in the environments of other trainers, which they import."""


@pytest.mark.parametrize("name", sorted({*MODULES} - {WORKER_SCRIPT} - ADAPTERS))
def test_examples_in(name):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    results = doctest.testmod(importlib.import_module(name), optionflags=flags)
    assert results.failed == 0
