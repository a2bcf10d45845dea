"""A folder of `contrib` can be deleted: nothing else needs it, and what it adds to the configuration goes with it."""

from __future__ import annotations

import ast
import re
import shutil
from functools import cache

import pytest
from hydra import compose, initialize_config_module

from tagrpo.settings import methods

SOURCE = methods.CONTRIB.parent
FOLDERS = sorted(path.parent.name for path in methods.CONTRIB.glob("*/paper.yaml"))


def options_below(folder):
    """`group/option` of all files in a tree of options."""
    return {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*/*.yaml")}


CORE = {option.removeprefix("comparisons/") for option in options_below(methods.configs())}
OPTIONS = {name: options_below(methods.CONTRIB / name / "configs") for name in FOLDERS}


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


@pytest.fixture
def without(tmp_path, monkeypatch):
    """A function that deletes folders from a copy of `contrib`, which is used in its place."""

    def delete(*folders):
        shutil.copytree(
            methods.CONTRIB, tmp_path / "contrib", ignore=shutil.ignore_patterns("__pycache__", *folders)
        )
        monkeypatch.setattr(methods, "CONTRIB", tmp_path / "contrib")

    return delete


def test_every_folder_is_a_method_and_names_no_option_twice():
    folders = {
        path.name for path in methods.CONTRIB.iterdir() if path.is_dir() and path.name != "__pycache__"
    }
    assert folders == set(FOLDERS)
    every = [*CORE, *(option for options in OPTIONS.values() for option in options)]
    assert len(set(every)) == len(every)


@pytest.mark.parametrize("name", FOLDERS)
def test_nothing_else_imports_or_names_it(name):
    own = methods.CONTRIB / name
    for path in SOURCE.rglob("*.py"):
        if own not in path.parents:
            assert not [
                module for module in imported(path) if module.startswith(f"tagrpo.contrib.{name}.")
            ], path
    for path in [*methods.CONTRIB.rglob("*.yaml"), *methods.configs().rglob("*.yaml")]:
        if own not in path.parents:
            named = re.search(rf"contrib\.{name}\.|settings: {name}/|/settings/{name}/", path.read_text())
            assert not named, path


@pytest.mark.parametrize("name", FOLDERS)
def test_what_it_adds_goes_with_it_and_nothing_else(name, without):
    groups = {option.rpartition("/")[0] for options in OPTIONS.values() for option in options}
    before = {f"{group}/{option}" for group in groups for option in methods.options_of(group)}
    without(name)
    after = {f"{group}/{option}" for group in groups for option in methods.options_of(group)}
    assert before - after == OPTIONS[name]


@pytest.mark.parametrize("all_of_them", [False, pytest.param(True, marks=pytest.mark.runs)])
def test_without_any_of_them_the_core_composes_its_own_experiments(without, all_of_them):
    without(*FOLDERS)
    left = methods.experiments()
    assert {"grpo", "ta_grpo", "pass_at_k", "prompt_augmentation", "dapo"} <= set(left)
    assert {f"experiment/{name}" for name in [*left, "none"]} == {
        o for o in CORE if o.startswith("experiment/")
    }
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        for experiment in left if all_of_them else ("grpo", "dapo"):
            assert compose("train", [f"experiment={experiment}"]).name == experiment
