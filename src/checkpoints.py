"""Checkpoints on disk: whole or not there at all, and which of them a run is resumed from.

`<run>/checkpoints/iteration-000020.ckpt` holds the state after 20 iterations: a file, or a folder of shards under
FSDP2. Each is written under another name, forced to disk, and then renamed; a process that dies, or a disk that is
full, leaves every earlier checkpoint as it was.
"""

from __future__ import annotations

import json
import pickle
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch.distributed.checkpoint import metadata

from .files import disk_full_explained, partial_path, remove, sync, write_json, written_whole

MARKER = "complete.json"
"""Written into a folder of shards after all else: file → size in bytes."""
SHARD_TYPES = {
    ("collections", "OrderedDict"),
    ("pathlib", "Path"),
    ("pathlib", "PosixPath"),
    ("torch", "Size"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
}
"""What the metadata of shards may name beside torch's number types and the metadata's own; see `check_metadata`."""


class TornCheckpointError(ValueError):
    """A checkpoint that was not written to its end, or has been damaged since."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint to a file beside its own, forces it to disk, and renames it.

    Lightning's own serialises into memory, then through the folder for temporary files, and renames without forcing the
    content to disk.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write `checkpoint` to `path`, a local file.

        Raises:
            OSError: there is no room; what was at `path` before is still there.
        """
        if storage_options is not None:
            raise TypeError(f"Expected no storage_options for a local file, but got {storage_options!r}. Drop them.")
        with written_whole(Path(path)) as partial, partial.open("wb") as file:
            torch.save(checkpoint, file)


def begin_folder(partial: Path) -> None:
    """Make an empty folder for shards; `commit_folder` gives it the name of the checkpoint."""
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)


def commit_folder(partial: Path, path: Path) -> None:
    """Mark a folder of shards as complete, force it to disk, and rename it to `path`."""
    with disk_full_explained(path):
        files = [file for file in sorted(partial.iterdir()) if file.name != MARKER]
        for file in files:
            sync(file)
        write_json(partial / MARKER, {file.name: file.stat().st_size for file in files})
    remove(path)
    partial.replace(path)
    sync(path.parent)


def name_of(iteration: int) -> str:
    """File or folder name of the checkpoint after so many iterations.

    >>> name_of(20)
    'iteration-000020.ckpt'
    """
    return f"iteration-{iteration:06d}.ckpt"


def iteration_of(path: Path) -> int | None:
    """Iterations done before the checkpoint `path`; None where its name is not of `name_of`'s form.

    >>> iteration_of(Path("checkpoints/iteration-000020.ckpt"))
    20
    """
    match = re.fullmatch(r"iteration-(\d+)\.ckpt", path.name)
    return int(match[1]) if match else None


def checkpoints_in(directory: Path) -> list[Path]:
    """The checkpoints in `directory`, oldest first, whether complete or not."""
    found = {path: iteration_of(path) for path in directory.glob("*.ckpt")}
    return sorted((path for path, at in found.items() if at is not None), key=lambda path: found[path] or 0)


def check(path: Path) -> None:
    """Check that a checkpoint is complete, without reading its tensors.

    Raises:
        FileNotFoundError: there is none.
        TornCheckpointError: parts of it are missing.
    """
    if path.is_dir():
        marker = path / MARKER
        if not marker.is_file():
            raise TornCheckpointError(f"it has no {MARKER}")
        for name, size in json.loads(marker.read_text()).items():
            found = (path / name).stat().st_size if (path / name).is_file() else None
            if found != size:
                raise TornCheckpointError(f"{name} has {found} bytes instead of {size}")
        check_metadata(path)
    elif path.is_file():
        try:
            zipfile.ZipFile(path).close()  # the table of contents is the last thing in the file
        except zipfile.BadZipFile as error:
            raise TornCheckpointError(f"the file of {path.stat().st_size} bytes breaks off ({error})") from error
    else:
        raise FileNotFoundError(f"Expected a checkpoint at {path}, but there is nothing. Check `resume`.")


def check_metadata(path: Path) -> None:
    """Check that loading the metadata of a folder of shards runs no foreign code: torch unpickles it unguarded.

    Raises:
        pickle.UnpicklingError: it names something that is not known to be harmless.
    """
    with (path / ".metadata").open("rb") as file:
        _GuardedUnpickler(file).load()


class _GuardedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = (module, name) in SHARD_TYPES
        known |= module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        known |= module == metadata.__name__ and getattr(getattr(metadata, name, None), "__module__", "") == module
        if not known:
            raise pickle.UnpicklingError(
                f"Expected the metadata of a checkpoint to hold types of torch alone, but it names {module}.{name}. "
                "Don't load it: it could run code."
            )
        return super().find_class(module, name)


def newest(directory: Path) -> Path | None:
    """The newest complete checkpoint in `directory`; warns of torn ones, which are passed over."""
    for path in reversed(checkpoints_in(directory)):
        try:
            check(path)
        except TornCheckpointError as torn:
            rank_zero_warn(f"Passed over the checkpoint {path}: {torn}. It was not written to its end.")
        else:
            return path
    return None


def resolve(resume: str | Path | None, directory: Path) -> Path | None:
    """The checkpoint that a run is to be resumed from.

    Args:
        resume: None starts anew; `last` is the newest complete checkpoint in `directory`; `auto` the same where there
            is one, and otherwise a new start; anything else is the path of a checkpoint.
        directory: Where the run's checkpoints are.

    Raises:
        FileNotFoundError: `last` without any, or nothing at the path.
        TornCheckpointError: the checkpoint at the path is not complete.
    """
    if resume is None:
        return None
    if str(resume) not in ("auto", "last"):
        path = Path(resume).expanduser()
        try:
            check(path)
        except TornCheckpointError as torn:
            raise TornCheckpointError(
                f"Expected a complete checkpoint at {path}, but {torn}. Use resume=last, which takes the newest "
                "complete one."
            ) from torn
        return path
    path_or_none = newest(directory)
    if path_or_none is None:
        if resume == "last":
            raise FileNotFoundError(
                f"Expected a complete checkpoint in {directory} for resume=last, but there is none. Use resume=auto to "
                "start anew where there is none, or check the run's directory."
            )
        rank_zero_info(f"resume=auto: no complete checkpoint in {directory}; the run starts anew.")
    return path_or_none


def set_aside(directory: Path, after: int) -> None:
    """Move checkpoints of more than `after` iterations to `<directory>.previous`; delete what was never finished.

    A run that starts anew, or from an older checkpoint, will not lead to them, so that `resume=last` must not find
    them. What was moved there earlier is deleted.
    """
    if not directory.is_dir():
        return
    for path in list(directory.glob(partial_path(directory / "*").name)):
        remove(path)
    later = [path for path in checkpoints_in(directory) if (iteration_of(path) or 0) > after]
    if not later:
        return
    previous = directory.with_name(directory.name + ".previous")
    shutil.rmtree(previous, ignore_errors=True)
    previous.mkdir()
    for path in later:
        path.replace(previous / path.name)
    rank_zero_warn(
        f"Moved {len(later)} checkpoints of iterations after {after} to {previous}: this run writes its own."
    )
