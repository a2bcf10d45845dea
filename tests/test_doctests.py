"""Every example in a docstring."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import tagrpo

MODULES = [module.name for module in pkgutil.walk_packages(tagrpo.__path__, "tagrpo.") if "configs" not in module.name]
# They run inside the workers of rewards and of vLLM, and import their libraries when they start.
WORKER_SCRIPTS = {"tagrpo.rewards.sandbox", "tagrpo.rollouts.engines.vllm_worker"}


@pytest.mark.parametrize("name", sorted(set(MODULES) - WORKER_SCRIPTS))
def test_examples_in(name):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    results = doctest.testmod(importlib.import_module(name), optionflags=flags)
    assert results.failed == 0
