"""Directories of runs that cannot be made, and names that lead out of runs."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from tagrpo.settings.config import sweep_folder
from tagrpo.settings.place import MakeDirectory, check_name, make_directory
from tests.helpers import forked


@pytest.mark.parametrize(
    "name",
    [
        "../../evil",
        "..",
        "a/../../b",
        "/tmp/evil",
        "~/evil",
        "",
        ".",
        None,
        "a\nb",
        "a\x1b[2J",
        "a\0b",
        [1],
        True,
    ],
)
def test_a_name_that_is_no_folder_inside_of_runs_is_refused(name):
    with pytest.raises(ValueError, match="`name` .*hydra.run.dir"):
        check_name(name)


@pytest.mark.parametrize("name", ["grpo", "mine/grpo", "a..b", "größe 2", 7, "...", "x=1,y=2"])
def test_other_names_are_taken(name):
    check_name(name)


@pytest.mark.parametrize("part", ["file/below", "a" * 300, "ä" * 200, "x\0y", "/".join(["d" * 200] * 30)])
def test_a_directory_that_cannot_be_made_is_refused_by_setting(tmp_path, part):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"hydra\.run\.dir .*`name`"):
        make_directory(f"{tmp_path}/{part}", "hydra.run.dir")


def test_the_directory_is_made(tmp_path):
    cfg = OmegaConf.create(
        {"name": "x", "hydra": {"run": {"dir": f"{tmp_path}/a/b"}, "sweep": {"dir": f"{tmp_path}/c"}}}
    )
    MakeDirectory().on_run_start(cfg)
    MakeDirectory().on_multirun_start(cfg)
    assert (tmp_path / "a" / "b").is_dir()
    assert (tmp_path / "c").is_dir()


@pytest.mark.parametrize(
    ("command", "asked", "said"),
    [
        ("train", ["hydra.run.dir=file/below"], "hydra.run.dir"),
        pytest.param("train", ["hydra.run.dir=" + "a" * 300], "hydra.run.dir", marks=pytest.mark.runs),
        pytest.param("train", ["name=../../evil"], "`name`", marks=pytest.mark.runs),
        ("train", ["-m", "seed=0,1", "name=../evil"], "`name`"),
        pytest.param(
            "train",
            ["-m", "seed=0,1", "hydra.sweep.dir=file/below"],
            "hydra.sweep.dir",
            marks=pytest.mark.runs,
        ),
        ("evaluate", ["name=../../evil"], "`name`"),
        pytest.param("evaluate", ["hydra.run.dir=file/below"], "hydra.run.dir", marks=pytest.mark.runs),
    ],
)
def test_commands_end_with_a_sentence_and_write_nothing(tmp_path, command, asked, said):
    folder = tmp_path / "inside" / "here"
    folder.mkdir(parents=True)
    (folder / "file").write_text("")
    code, output = forked(command, *asked, folder=folder)
    assert code == 1
    assert said in output
    assert "Traceback" not in output
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "here", "inside"]


def test_folders_of_a_sweep_have_names_that_file_systems_take():
    assert sweep_folder("data.path=a/b,seed=1", 1) == "data.path=a-b/seed1"
    assert sweep_folder("seed=1", 1) == sweep_folder("", 1) == "seed1"
    long = [sweep_folder("x=" + "問" * 200 + end, 0) for end in ("a", "b")]
    assert long[0] != long[1], "the parts that are cut differ"
    for name in long:
        folder, _, seed = name.partition("/")
        assert len(folder.encode()) <= 120
        assert folder.startswith("x=問問")
        assert seed == "seed0"
