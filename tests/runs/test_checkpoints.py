"""Checkpoints on disk: whole or not there, found again, harmless."""

from __future__ import annotations

import errno
import io
import os
import pathlib
import pickle
import re
import resource
import signal
import sys
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tagrpo.files import begin_folder, disk_full_explained, remove, write_json
from tagrpo.modules.lightning.strategy import FullyShardedStrategy
from tagrpo.runs.checkpoints import (
    AtomicCheckpointIO,
    DamagedFileError,
    check_checkpoint,
    check_metadata,
    commit_folder,
    newest,
    resolve,
    seals_of,
    set_aside,
)
from tagrpo.runs.directory import checkpoint_name, checkpoints_in

CONTENT = {"state_dict": {"weight": torch.arange(50_000.0)}, "global_step": 4}


def write_file(directory: Path, iteration: int) -> Path:
    path = directory / checkpoint_name(iteration)
    AtomicCheckpointIO().save_checkpoint(CONTENT, path)
    return path


def write_shards(directory: Path, iteration: int) -> Path:
    path = directory / checkpoint_name(iteration)
    begin_folder(directory / ".partial-x")
    dcp.save({"state_dict": CONTENT["state_dict"]}, checkpoint_id=directory / ".partial-x", no_dist=True)
    commit_folder(directory / ".partial-x", path)
    return path


@pytest.mark.parametrize("write", [write_file, write_shards])
def test_a_checkpoint_is_complete_and_leaves_nothing_beside_it(write, tmp_path):
    path = write(tmp_path, 20)
    check_checkpoint(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["iteration-000020.ckpt"]
    remove(path)
    assert not list(tmp_path.iterdir())


@contextmanager
def full_disk():
    """The system refuses to let a file grow beyond 100 kB, as it does on a full disk (EFBIG in the place of ENOSPC)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        yield
    finally:  # before pytest writes, perhaps into a file that is larger
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("write", [write_file, write_shards])
def test_a_disk_that_is_full_is_said_to_be_and_leaves_the_checkpoint_before_intact(write, tmp_path):
    before = write(tmp_path, 10)
    with (
        pytest.raises(OSError, match="is intact.*resume=auto") as raised,
        full_disk(),
        disk_full_explained(tmp_path / checkpoint_name(20)),
    ):
        write(tmp_path, 20)
    assert raised.value.errno in (errno.EFBIG, errno.ENOSPC)
    check_checkpoint(before)
    assert newest(tmp_path) == before
    assert not (tmp_path / checkpoint_name(20)).exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.EIO, "Input/output error")], ids=repr)
def test_nothing_else_is_taken_for_a_full_disk(error, tmp_path):
    class Interrupted(io.FileIO):
        def write(self, content):
            if self.tell() > 1000:
                raise error
            return super().write(content)

    with (
        pytest.raises(type(error), match=re.escape(str(error))),
        disk_full_explained(tmp_path / "x"),
        Interrupted(tmp_path / "x", "w") as file,
    ):
        torch.save(CONTENT, file)


def test_a_process_that_dies_while_it_writes_leaves_the_old_content(tmp_path, monkeypatch):
    path = write_file(tmp_path, 10)

    def save_a_part(content, file):
        file.write(b"half")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(torch, "save", save_a_part)
    child = os.fork()
    if not child:
        write_file(tmp_path, 10)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    monkeypatch.undo()
    assert (tmp_path / ".partial-iteration-000010.ckpt").read_bytes() == b"half"
    assert torch.load(path, weights_only=True)["global_step"] == 4
    assert newest(tmp_path) == path
    set_aside(tmp_path, after=10)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def tear_file(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def tear_shards(path: Path) -> None:
    shard = next(path.glob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:-1000])


def lose_marker(path: Path) -> None:
    (path / "complete.json").unlink()


def zero_tensor(path: Path) -> None:
    content, weight = path.read_bytes(), CONTENT["state_dict"]["weight"].numpy().tobytes()
    assert content.count(weight) == 1
    path.write_bytes(content.replace(weight, bytes(len(weight))))
    assert not torch.load(path, weights_only=True)["state_dict"]["weight"].any(), "torch does not notice"


def damage_pickle(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"global_step", b"global_stop"))


def empty_marker(path: Path) -> None:
    (path / "complete.json").write_text("null")


def nest_marker(path: Path) -> None:
    (path / "complete.json").write_text("[" * 100_000)


def empty_metadata(path: Path) -> None:
    (path / ".metadata").write_bytes(b"")
    write_json(
        path / "complete.json", seals_of([file for file in path.iterdir() if file.name != "complete.json"])
    )


def metadata_as_pipe(path: Path) -> None:
    (path / ".metadata").unlink()
    os.mkfifo(path / ".metadata")


def marker_as_pipe(path: Path) -> None:
    (path / "complete.json").unlink()
    os.mkfifo(path / "complete.json")


def pipe(path: Path) -> None:
    remove(path)
    os.mkfifo(path)


def dangling_link(path: Path) -> None:
    remove(path)
    path.symlink_to("nowhere")


SHARD_FILES = [".metadata", "__0_0.distcp", "complete.json"]


def flip(name: str, path: Path) -> None:
    content = bytearray((path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (path / name).write_bytes(content)


@pytest.mark.parametrize(
    ("write", "tear"),
    [
        (write_file, tear_file), (write_shards, tear_shards), (write_shards, lose_marker), (write_file, zero_tensor),
        (write_file, damage_pickle), (write_shards, empty_marker), (write_shards, nest_marker),
        (write_shards, empty_metadata), (write_shards, metadata_as_pipe), (write_shards, marker_as_pipe),
        (write_file, pipe),
        (write_file, dangling_link),
        *((write_shards, partial(flip, name)) for name in SHARD_FILES),
    ],
)  # fmt: skip
def test_torn_checkpoints_are_passed_over_with_a_warning(write, tear, tmp_path):
    good, torn = write(tmp_path, 9), write(tmp_path, 10)
    tear(torn)
    with pytest.warns(UserWarning, match="Skipping damaged checkpoint .*iteration-000010.ckpt"):
        assert resolve("auto", tmp_path) == good
    with pytest.raises(DamagedFileError, match="as resume"):
        resolve(torn, tmp_path)
    remove(torn)
    assert checkpoints_in(tmp_path) == {9: good}


def test_what_to_resume_from(tmp_path):
    assert resolve(None, tmp_path) is None
    assert resolve("auto", tmp_path) is None
    # By number, not by time or alphabet.
    newer, older = write_file(tmp_path, 1_000_000), write_file(tmp_path, 999_999)
    assert list(checkpoints_in(tmp_path).values()) == [older, newer]
    assert resolve("auto", tmp_path) == newer
    assert resolve(str(older), tmp_path) == older
    assert resolve(None, tmp_path) is None
    with pytest.raises(FileNotFoundError, match="nothing"):
        resolve(tmp_path / "missing.ckpt", tmp_path)


def test_a_run_that_takes_another_course_moves_the_checkpoints_of_the_former_one(tmp_path):
    directory = tmp_path / "checkpoints"
    for iteration in (10, 20, 30):
        write_file(directory, iteration)
    with pytest.warns(UserWarning, match="Moved 2 checkpoints"):
        set_aside(directory, after=10)
    assert list(checkpoints_in(directory)) == [10]
    assert list(checkpoints_in(tmp_path / "checkpoints.previous")) == [20, 30]
    with pytest.warns(UserWarning, match="Moved 1 checkpoints.*previous-2"):
        set_aside(directory, after=0)
    assert list(checkpoints_in(tmp_path / "checkpoints.previous-2")) == [10]
    assert len(checkpoints_in(tmp_path / "checkpoints.previous")) == 2, "what was moved earlier stays"


class Harmful:
    def __reduce__(self):
        return os.system, ("touch harmed",)


def test_shards_whose_metadata_could_run_code_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_shards(tmp_path, 10)
    (path / ".metadata").write_bytes(pickle.dumps({"state_dict_metadata": Harmful()}))
    write_json(
        path / "complete.json", seals_of([file for file in path.iterdir() if file.name != "complete.json"])
    )
    with pytest.raises(pickle.UnpicklingError, match="could run code"):
        check_checkpoint(path)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("module", ["pathlib", "pathlib._local"])
def test_metadata_may_name_a_path_whatever_python_wrote_it(tmp_path, monkeypatch, module):
    monkeypatch.setitem(sys.modules, "pathlib._local", pathlib)  # its home in Python 3.13
    (tmp_path / ".metadata").write_bytes(f"c{module}\nPosixPath\n(V/\ntR.".encode())
    check_metadata(tmp_path)


def test_shards_with_entries_of_bytes_are_refused_when_read_and_when_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, path = tmp_path / ".partial-x", tmp_path / checkpoint_name(10)
    begin_folder(folder)
    dcp.save(
        {"state_dict": {"weight": torch.zeros(2), "extra": Harmful()}}, checkpoint_id=folder, no_dist=True
    )
    with pytest.raises(pickle.UnpicklingError, match="entries of bytes"):
        commit_folder(folder, path)
    write_json(folder / "complete.json", seals_of([*folder.iterdir()]))
    folder.rename(path)
    for attempt in (
        lambda: check_checkpoint(path),
        lambda: newest(tmp_path),
        lambda: resolve(path, tmp_path),
    ):
        with pytest.raises(pickle.UnpicklingError, match="Don't load it"):
            attempt()
    # It is no empty threat: this is what loading it would do.
    dcp.load({"state_dict": {"weight": torch.zeros(2), "extra": 0}}, checkpoint_id=path, no_dist=True)
    assert (tmp_path / "harmed").exists()


def test_a_file_that_could_run_code_is_refused(tmp_path):
    path = tmp_path / checkpoint_name(10)
    torch.save({"state_dict": Harmful()}, path)
    with pytest.raises(pickle.UnpicklingError):
        AtomicCheckpointIO().load_checkpoint(path, weights_only=True)


UNLOADABLE = {
    "an object": Path("x"),
    "a class": Path,
    "no value of pickle": lambda: None,
    "deep inside": {"a": [{"b": (1, {Path("x")})}]},
}


@pytest.mark.parametrize("state", UNLOADABLE.values(), ids=UNLOADABLE)
@pytest.mark.parametrize(
    "save", [AtomicCheckpointIO().save_checkpoint, FullyShardedStrategy().save_checkpoint]
)
def test_a_state_that_a_resume_would_not_load_is_refused_by_the_name_of_its_owner(tmp_path, save, state):
    before = write_file(tmp_path, 10)
    plain = CONTENT | {"callbacks": {"Plain": {"x": 1}}, "optimizer_states": []}
    mine = {"callbacks": {"Plain": {"x": 1}, "Mine{'every': 2}": {"x": state}}}
    for content, owner in (
        (plain | mine, "callback Mine"),
        (plain | {"MyQuestions": {"x": state}}, "MyQuestions"),
    ):
        with pytest.raises(TypeError, match=rf"state of {owner}"):
            save(content, tmp_path / checkpoint_name(20))
        assert list(tmp_path.iterdir()) == [before]


def test_a_checkpoint_that_can_be_loaded_is_written_once(tmp_path, monkeypatch):
    saved = []
    save = torch.save
    monkeypatch.setattr(torch, "save", lambda content, file: (saved.append(content), save(content, file)))
    content = CONTENT | {"callbacks": {"Mine": {"weights": torch.arange(5.0)}}}
    path = tmp_path / checkpoint_name(10)
    AtomicCheckpointIO().save_checkpoint(content, path)
    assert len(saved) == 1
    found = AtomicCheckpointIO().load_checkpoint(path, weights_only=True)
    assert found["callbacks"]["Mine"]["weights"].tolist() == [0, 1, 2, 3, 4]


@given(st.lists(st.integers(0, 10**7), unique=True, max_size=6))
@settings(max_examples=20)
def test_checkpoints_are_found_in_the_order_of_their_iterations(iterations):
    with tempfile.TemporaryDirectory() as folder:
        for name in (
            *map(checkpoint_name, iterations),
            "other.ckpt",
            "iteration-1.pt",
            ".partial-iteration-000003.ckpt",
        ):
            Path(folder, name).touch()
        assert list(checkpoints_in(Path(folder))) == sorted(iterations)


@pytest.fixture(scope="module", params=[write_file, write_shards])
def intact(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("intact"), 3)


@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_one_flipped_bit_in_any_tensor_is_noticed(intact, where, bit):
    """Between the first and the last byte of the values; names of records are zip's own matter."""
    file = next(intact.glob("*.distcp")) if intact.is_dir() else intact
    content = file.read_bytes()
    values = CONTENT["state_dict"]["weight"].numpy().tobytes()
    at = content.index(values) + int(where * len(values))
    try:
        file.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
        with pytest.raises(DamagedFileError):
            check_checkpoint(intact)
    finally:
        file.write_bytes(content)
    check_checkpoint(intact)


def test_where_all_checkpoints_are_damaged_the_error_names_each_and_what_to_do(tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    paths = [write_file(folder, 10), write_shards(folder, 20)]
    tear_file(paths[0])
    lose_marker(paths[1])
    for attempt in (
        lambda: newest(folder),
        lambda: resolve("auto", folder),
        lambda: resolve(tmp_path / "run", folder),
    ):
        with pytest.raises(DamagedFileError, match=r"(?s)all 2 are damaged.*000020\.ckpt.*000010\.ckpt"):
            attempt()
    with pytest.raises(DamagedFileError, match="name=…"):
        resolve("auto", folder)
    (paths[1] / "complete.json").write_text('{".metadata": [1, true]}')
    with pytest.raises(DamagedFileError, match=r"complete\.json"):
        check_checkpoint(paths[1])
    assert newest(tmp_path) is None, "there are none at all"
