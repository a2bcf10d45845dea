"""A folder of `contrib` can be deleted: nothing else needs it, and what it adds to the configuration goes with it."""

from __future__ import annotations

import ast
import re
import shutil
from functools import cache

import pytest
from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore

from tagrpo.settings import methods

SOURCE = methods.CONTRIB.parent
FOLDERS = sorted(path.parent.name for path in methods.CONTRIB.glob("*/method.yaml"))
GROUPS = ("experiment", "advantage", "credit", "curriculum", "reward_terms", "compare", "rephraser")
CORE = [option for path in (methods.configs() / "papers").glob("*.yaml") for option in methods._sections(path)]
OPTIONS = {name: list(methods._sections(methods.CONTRIB / name / "method.yaml")) for name in FOLDERS}


@cache
def imported(path):
    """Absolute names of the modules of this project that a file imports, each with a point at its end."""
    package, found = ["tagrpo", *path.relative_to(SOURCE).parent.parts], []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            found += [f"{base}.{alias.name}." for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [f"{alias.name}." for alias in node.names]
    return found


def options_without(folders, tmp_path, monkeypatch):
    """Group → options, with these folders deleted from a copy."""
    shutil.copytree(methods.CONTRIB, tmp_path / "contrib", ignore=shutil.ignore_patterns("__pycache__", *folders))
    store, groups = ConfigStore.instance(), (*GROUPS, "settings")
    kept = {name: node for name, node in store.repo.items() if name not in groups}
    monkeypatch.setattr(store, "repo", kept)
    monkeypatch.setattr(methods, "CONTRIB", tmp_path / "contrib")
    methods.register()
    return {group: set(methods.options_of(group)) for group in groups}


def test_every_folder_is_a_method_and_names_no_option_twice():
    assert len(FOLDERS) == 28
    folders = {path.name for path in methods.CONTRIB.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(FOLDERS)
    tree = methods.configs()
    paths = [path.relative_to(tree).with_suffix("").as_posix() for path in tree.rglob("*/*.yaml")]
    every = [path.removeprefix("comparisons/") for path in paths] + CORE
    every += [option for options in OPTIONS.values() for option in options]
    assert len(set(every)) == len(every)


@pytest.mark.parametrize("name", FOLDERS)
def test_nothing_else_imports_or_names_it(name):
    own = methods.CONTRIB / name
    for path in SOURCE.rglob("*.py"):
        if own not in path.parents:
            assert not [module for module in imported(path) if module.startswith(f"tagrpo.contrib.{name}.")], path
    others = [path for path in methods.CONTRIB.glob("*/method.yaml") if path.parent != own]
    for path in [*others, *methods.configs().rglob("*.yaml")]:
        assert not re.search(rf"contrib\.{name}\.|settings: {name}/|/settings/{name}/", path.read_text()), path


@pytest.mark.parametrize("name", FOLDERS)
def test_what_it_adds_goes_with_it_and_nothing_else(name, tmp_path, monkeypatch):
    before = {f"{group}/{option}" for group in GROUPS for option in methods.options_of(group)}
    left = options_without([name], tmp_path, monkeypatch)
    after = {f"{group}/{option}" for group, options in left.items() for option in options if group != "settings"}
    assert before - after == {option for option in OPTIONS[name] if not option.startswith("settings/")}
    assert name not in ConfigStore.instance().repo["settings"]


def test_without_any_of_them_the_core_composes_its_own_experiments(tmp_path, monkeypatch):
    left = options_without(FOLDERS, tmp_path, monkeypatch)["experiment"]
    assert {"grpo", "ta_grpo", "pass_at_k", "prompt_augmentation", "dapo"} <= left
    core = {option.removeprefix("experiment/") for option in CORE if option.startswith("experiment/")}
    assert left == {"grpo", "ta_grpo"} | core
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        for experiment in left:
            assert compose("train", [f"experiment={experiment}"]).name == experiment
