"""Three rings: imports run inwards only, the core needs neither Lightning nor Hydra, and the outer folders can go."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections import defaultdict
from pathlib import Path

import pytest

from tests.without_shell import LIBRARIES, ROOMS

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
BETWEEN_REMOVABLE = {
    ("contrib", "rephrasing"),  # QuestA's hints are rephrasings
    ("report", "analysis"),
    ("rollouts/servers", "rollouts/transfer"),  # the ends of a transfer
    ("study", "analysis"),
    ("study", "report"),
}
"""Imports from one removable room to another."""


FILES = sorted(SRC.rglob("*.py"))
REMOVABLE = [room for room in ROOMS.rooms() if ROOMS.ring_of(room) == "Removable"]


@pytest.fixture
def rooms(monkeypatch, tmp_path):
    """The script with `SRC` in an empty folder; write files to it with `write`."""
    monkeypatch.setattr(ROOMS, "SRC", tmp_path)
    return ROOMS


def write(folder, **texts):
    """Write files: `core__x="…"` is `core/x.py`, and `core="Core"` the ring of a folder."""
    (folder / "__init__.py").write_text('"""Core: the base."""\n')
    for name, text in texts.items():
        if text in ROOMS.RINGS:
            path, text = folder.joinpath(*name.split("__"), "__init__.py"), f'"""{text}: a room."""\n'
        else:
            path = folder.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def outwards(rooms):
    """Pairs of a file and a room in a ring further out that it imports from."""
    found = []
    for path in sorted(rooms.SRC.rglob("*.py")):
        ring = rooms.RINGS.index(rooms.ring_of(rooms.room_of(path)))
        for other in rooms.imported(path):
            room = rooms.room_of(other)
            if rooms.RINGS.index(rooms.ring_of(room)) > ring:
                found.append((path.relative_to(rooms.SRC).as_posix(), room))
    return found


def test_no_import_runs_outwards():
    assert outwards(ROOMS) == []


def test_every_ring_has_rooms():
    rings = defaultdict(set)
    for room in ROOMS.rooms():
        rings[ROOMS.ring_of(room)].add(room)
    assert {"types", "packing", "modules", "rollouts", "rewards", "metrics", "datamodules"} < rings["Core"]
    assert {"modules/lightning", "datamodules/lightning", "callbacks", "runs", "settings", "cli"} < rings[
        "Shell"
    ]
    assert {"contrib", "lab", "rephrasing", "analysis"} < rings["Removable"]


@pytest.mark.parametrize(
    "text",
    [
        "from ..shell import x\n",
        "from ..shell.part import x\n",
        "from .. import shell\n",
        "from tagrpo.shell import x\n",
        "import tagrpo.shell.part\n",
        "def f():\n    from ..shell import x\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..shell import x\n",
        "import typing as t\nif t.TYPE_CHECKING:\n    from ..shell import x\n",
    ],
)
def test_an_import_that_runs_outwards_is_found(rooms, tmp_path, text):
    write(tmp_path, core="Core", shell="Shell", shell__part="", core__one=text)
    assert outwards(rooms) == [("core/one.py", "shell")]
    assert rooms.rooms()["core"] == {"shell"}


def test_a_folder_within_a_room_may_be_in_another_ring(rooms, tmp_path):
    write(tmp_path, core="Core", core__outer="Shell", core__outer__x="from ..deep.y import z\n")
    write(tmp_path, core__deep__y="from ..outer.x import z\n")
    assert rooms.room_of(tmp_path / "core" / "deep" / "y.py") == "core"
    assert outwards(rooms) == [("core/deep/y.py", "core/outer")]


def test_a_folder_that_names_no_ring_is_refused(rooms, tmp_path):
    write(tmp_path, core="Core")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "__init__.py").write_text('"""Something new."""\n')
    with pytest.raises(ValueError, match="new/__init__.py"):
        rooms.rooms()


def test_rooms_that_import_from_each_other_are_refused(rooms, tmp_path):
    checked = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..{} import x\n"
    write(tmp_path, a="Core", b="Core", a__one=checked.format("b"), b__one=checked.format("a"))
    with pytest.raises(ValueError, match="cycle"):
        rooms.rooms()


def test_removable_rooms_import_from_one_another_only_where_it_is_written_down():
    used = ROOMS.rooms()
    found = {(room, other) for room in REMOVABLE for other in used[room] if other in REMOVABLE}
    assert found == BETWEEN_REMOVABLE


def test_the_core_imports_no_library_of_the_shell_and_vllm_in_one_file():
    found = defaultdict(set)
    for name in ROOMS.core_files():
        for node in ast.walk(ast.parse((SRC / name).read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            for library in {each.partition(".")[0] for each in names} & (LIBRARIES | {"vllm"}):
                found[library].add(name)
    assert found == {"vllm": {"rollouts/engines/vllm.py"}}


def test_a_public_name_of_core_and_shell_stands_for_one_thing():
    files = defaultdict(list)
    for path in FILES:
        if ROOMS.ring_of(ROOMS.room_of(path)) == "Removable":
            continue
        for node in ast.parse(path.read_text()).body:
            named = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if named and not node.name.startswith("_") and node.name != "main":
                files[node.name].append(path.relative_to(SRC).as_posix())
    assert len(files) > 300
    assert {name: places for name, places in files.items() if len(places) > 1} == {}


def test_the_page_draws_the_rooms_as_they_are():
    page = ROOMS.PAGE.read_text()
    for name, text in (("rooms", ROOMS.section()), ("reading", ROOMS.reading())):
        assert f"<!-- begin {name} -->\n{text}\n<!-- end {name} -->" in page, "run python scripts/rooms.py"


def test_the_reading_order_has_every_file_of_the_core_once(monkeypatch):
    named = [name for stage in ROOMS.STAGES for name in [*stage.files, *stage.beside]]
    assert len(set(named)) == len(named)
    first, *others = ROOMS.STAGES
    missing = first.files[0]
    for wrong, name in (
        (first._replace(files=first.files[1:]), missing),
        (first._replace(beside=["gone.py"]), r"gone\.py"),
    ):
        monkeypatch.setattr(ROOMS, "STAGES", [wrong, *others])
        with pytest.raises(ValueError, match=name):
            ROOMS.reading()


def test_arrows_that_follow_from_others_are_left_out(rooms, tmp_path):
    write(tmp_path, low="Core", mid="Core", mid__deep="Shell", top="Removable")
    write(tmp_path, mid__x="from .. import low\n", top__x="from ..mid import x\nfrom ..low import y\n")
    drawn = rooms.section()
    assert "    mid --> low\n" in drawn
    assert "    top --> mid\n" in drawn
    assert "    top --> low\n" not in drawn
    assert '        mid_deep["mid/deep"]\n' in drawn
    assert "| [`top/`](../src/top) | a room. |" in drawn
    assert "| [`low/`]" not in drawn, "a room of the core is in the reading order"


WITHOUT_THE_SHELL = """
import importlib, runpy, sys
from tests import without_shell

without_shell.block()
for name in {names!r}:
    importlib.import_module(name)
runpy.run_path({script!r}, run_name="__main__")
without_shell.BLOCKED.discard("omegaconf")  # runs read their settings with it
for name in {beside!r}:
    importlib.import_module(name)
print(sorted({{name.partition(".")[0] for name in sys.modules}} & without_shell.BLOCKED))
"""


def dotted(path):
    """Name of a module, to be imported."""
    return ".".join(("tagrpo", *path.relative_to(SRC).with_suffix("").parts)).removesuffix(".__init__")


def without_lightning():
    """Modules of removable rooms that import neither Lightning, Hydra, nor a room of the shell that needs these."""
    pure = {room for room in ROOMS.rooms() if ROOMS.ring_of(room) == "Core"} | {
        "runs",
        "starter",
        "analysis",
        "report",
    }
    for path in FILES:
        if ROOMS.room_of(path) in {"analysis", "contrib", "lab", "rephrasing", "report", "rollouts/servers"}:
            tree = ast.walk(ast.parse(path.read_text()))
            libraries = {node.module for node in tree if isinstance(node, ast.ImportFrom) and not node.level}
            rooms = {ROOMS.room_of(other) for other in ROOMS.imported(path)}
            alone = not {str(library).partition(".")[0] for library in libraries} & LIBRARIES
            if alone and rooms <= pure | {ROOMS.room_of(path), "rephrasing"}:
                yield dotted(path)


@pytest.mark.runs
def test_the_core_and_the_plain_loop_run_without_the_libraries_of_the_shell():
    core = [dotted(path) for path in FILES if ROOMS.ring_of(ROOMS.room_of(path)) == "Core"]
    beside = sorted(without_lightning())
    assert len(core) > 70
    assert {"tagrpo.analysis.statistics", "tagrpo.contrib.ucpo.advantage", "tagrpo.lab.objectives"} < set(
        beside
    )
    script = str(ROOT / "examples" / "plain_torch.py")
    program = WITHOUT_THE_SHELL.format(names=core, script=script, beside=beside)
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    shares, found = result.stdout.splitlines()[-2:]
    assert shares == "[0.48, 0.49, 0.49, 0.52, 0.5, 0.61]"
    assert found == "[]"


def copy_of_the_package(folder, *removed):
    """Copy the package to `folder/tagrpo`, as it is installed, without the rooms `removed`."""
    package = folder / "tagrpo"
    shutil.copytree(SRC, package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "configs", package / "configs", ignore=shutil.ignore_patterns("__pycache__"))
    for room in removed:
        shutil.rmtree(package / room)
    return package


REMOVED = """
import importlib, os, sys
import hydra, lightning.pytorch, omegaconf, torch, torchmetrics, transformers

failed = []
for room, path in {copies!r}:
    child = os.fork()
    if not child:
        sys.path.insert(0, path)
        try:
            import tagrpo
            assert list(tagrpo.__path__) == [path + "/tagrpo"], tagrpo.__path__
            for name in {names!r}:
                importlib.import_module(name)
            from tagrpo.settings.config import compose_run
            assert compose_run(path + "/run", ["experiment=grpo"]).name == "grpo"
        except BaseException as error:
            print(room, type(error).__name__, error, flush=True)
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        failed.append(room)
sys.exit(f"failed without {{failed}}" if failed else 0)
"""


@pytest.mark.slow
def test_each_removable_room_can_be_deleted(tmp_path):
    """The core, the training command and the compared experiment are there without it."""
    copies = []
    for number, removed in enumerate([*([room] for room in REMOVABLE), REMOVABLE]):
        folder = tmp_path / str(number)
        copy_of_the_package(folder, *removed)
        copies.append((", ".join(removed), str(folder)))
    names = [dotted(path) for path in FILES if ROOMS.ring_of(ROOMS.room_of(path)) != "Removable"]
    program = REMOVED.format(copies=copies, names=names)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]


@pytest.mark.runs
def test_a_run_trains_without_any_removable_room(tmp_path):
    copy_of_the_package(tmp_path, *REMOVABLE)
    for name, count in (("train", 8), ("test", 2)):
        rows = [{"id": f"{name}{n}", "question": f"{n} + 1 = ?", "answer": str(n + 1)} for n in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    settings = [
        "experiment=grpo", "model=starter", "data=jsonl", "data.train.path=train.jsonl", "data.evaluation.test.path=test.jsonl",
        "iterations=2", "data.batch_size=4", "data.evaluation_samples=2", "callbacks.pass_at_k.ks=[1]", "name=bare",
    ]  # fmt: skip
    result = subprocess.run(
        [sys.executable, "-m", "tagrpo.cli.train", *settings],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    run = tmp_path / "runs" / "bare" / "seed0"
    assert (run / "finished").exists()
    assert (run / "model" / "model.safetensors").exists()
    assert json.loads((run / "ledger.json").read_text())["iterations"] == 2


WHEEL = "from setuptools import build_meta; print(build_meta.build_wheel({folder!r}))"


def packages_of_a_wheel(root, folder):
    """Build a wheel of the repository in `root`; return the folders of its modules, and all its files."""
    program = WHEEL.format(folder=str(folder))
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    with zipfile.ZipFile(folder / result.stdout.splitlines()[-1]) as wheel:
        files = [name for name in wheel.namelist() if name.startswith("tagrpo/")]
    packages = {
        Path(name).parent.relative_to("tagrpo").as_posix() for name in files if name.endswith("/__init__.py")
    }
    return packages, files


@pytest.mark.parametrize(
    "removed",
    [
        pytest.param([], id="nothing removed", marks=pytest.mark.slow),
        pytest.param(REMOVABLE, id="all removed"),
    ],
)
def test_the_wheel_has_the_packages_that_are_there(tmp_path, removed):
    root = tmp_path / "repository"
    for name in ("src", "configs"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, root / name)
    for room in removed:
        shutil.rmtree(root / "src" / room)
    (root / "src" / "added").mkdir()
    (root / "src" / "added" / "__init__.py").write_text('"""Removable: a new folder."""\n')
    packages, files = packages_of_a_wheel(root, tmp_path)
    there = {path.parent.relative_to(root / "src").as_posix() for path in (root / "src").rglob("__init__.py")}
    assert packages == there | {"configs", "configs/comparisons"}
    assert "tagrpo/configs/train.yaml" in files
    assert "tagrpo/starter/model.safetensors" in files
    assert any(name.startswith("tagrpo/contrib/") for name in files) == (not removed)
