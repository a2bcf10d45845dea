"""What code depends on is found by its imports, and changes when any of it does."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest
import torch

from tagrpo.runs.sources import sources_of
from tagrpo.settings.identity import _code_of

FILES = {
    "mine/__init__.py": "",
    "mine/verifier.py": "import json\nfrom helpers.parse import number\nfrom . import sibling\n\nclass Reward: ...\n",
    "mine/sibling.py": "def late():\n    import deep.inside.leaf\n    import an_optional_package_that_is_not_there\n",
    "helpers/__init__.py": "raise SystemExit('nothing is imported to follow an import')\n",
    "helpers/parse.py": "import torch\nimport helpers.cycle\nnumber = 1\n",
    "helpers/cycle.py": "import helpers.parse\n",
    "deep/inside/leaf.py": "x = 1\n",
    "unused.py": "x = 1\n",
}


@pytest.fixture
def written(tmp_path, monkeypatch):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [
        name for name in sys.modules if name.partition(".")[0] in ("mine", "helpers", "deep", "plain")
    ]:
        del sys.modules[name]


USED = [
    "mine",
    "mine.verifier",
    "mine.sibling",
    "helpers",
    "helpers.parse",
    "helpers.cycle",
    "deep.inside.leaf",
]


def test_imports_are_followed_through_packages_cycles_and_functions(written):
    found = sources_of(["mine.verifier"])
    assert found.digests.keys() == {*USED, "torch"}
    assert found.digests["torch"] == torch.__version__
    assert found.open == []


@pytest.mark.parametrize("name", USED)
def test_a_change_of_any_module_that_is_imported_changes_the_digest_of_that_module_alone(name, written):
    before = sources_of(["mine.verifier"]).digests
    path = written / (name.replace(".", "/") + ".py")
    path = path if path.exists() else written / name / "__init__.py"
    path.write_text(path.read_text() + "# changed\n")
    after = sources_of(["mine.verifier"]).digests
    assert {each for each in before.keys() | after.keys() if before.get(each) != after.get(each)} == {name}
    (written / "unused.py").write_text("x = 2\n")
    assert sources_of(["mine.verifier"]).digests == after


def test_the_identity_of_a_reward_covers_what_it_imports_from_another_folder(written):
    (written / "helpers" / "__init__.py").write_text("")
    settings = {"_target_": "mine.verifier.Reward"}
    before = _code_of(settings)
    assert _code_of(settings) == before
    (written / "helpers" / "parse.py").write_text("number = 2\n")
    assert _code_of(settings) != before


@pytest.mark.parametrize(
    ("line", "followed", "hidden"),
    [
        ("importlib.import_module('helpers.parse')", True, False),
        ("__import__('helpers.parse')", True, False),
        ("importlib.import_module(name)", False, True),
        ("importlib.util.spec_from_file_location('x', path)", False, True),
        ("runpy.run_path('x.py')", False, True),
        ("from helpers.parse import *", True, False),
        ("import helpers.parse as other", True, False),
        ("if typing.TYPE_CHECKING:\n    import helpers.parse", False, False),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    import helpers.parse", True, False),
        ("from .... import beyond", False, False),
        ("this is no Python", False, False),
    ],
)
def test_modules_that_are_loaded_at_run_time_are_followed_if_the_source_names_them(
    line, followed, hidden, written
):
    (written / "plain.py").write_text(f"{line}\n")
    found = sources_of(["plain"])
    assert ("helpers.parse" in found.digests) == followed
    assert found.open == (["plain"] if hidden else [])


def test_a_verifier_that_loads_unnamed_code_is_warned_of(written):
    (written / "plain.py").write_text(
        "import importlib\nload = lambda x: importlib.import_module(x)\nclass Reward: ...\n"
    )
    with pytest.warns(UserWarning, match="plain loads"):
        _code_of({"_target_": "plain.Reward"})


def test_no_code_runs_when_imports_are_followed(written):
    sources_of(["mine.verifier"])
    assert "helpers" not in sys.modules
    assert import_module("mine").__file__ == str(written / "mine" / "__init__.py")
