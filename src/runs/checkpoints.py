"""Checkpoints on disk, which are written atomically, and the choice of the checkpoint to resume from.

`<run>/checkpoints/iteration-000020.ckpt` is the state after 20 iterations: a file, or a folder of shards
under FSDP2. Before a checkpoint is loaded, all of it is compared with the checksums that were written with
it. Only containers, numbers and tensors are unpickled.
"""

import io
import pickle
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed.checkpoint as dcp
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from pydantic import Field
from torch.distributed.checkpoint import metadata

from ..files import (
    DamagedFileError,
    check_torch_file,
    checksum,
    damage_explained,
    partial_path,
    remove,
    sync,
    write_json,
    written_whole,
)
from ..foreign import Count, ForeignDataError, Message, Text, read, read_json
from .directory import checkpoints_in, existing

MARKER = "complete.json"  # written into a folder of shards after all else: file → size in bytes and CRC-32
METADATA = ".metadata"  # torch's description of the shards
REST = "meta.pt"  # everything in a checkpoint but the tensors of the model and the optimizer
REMEDY = "Give another checkpoint as resume, or put a copy of this one in its place."
"""End of messages about a checkpoint that a run can't continue from."""
SHARD_TYPES = {
    ("collections", "OrderedDict"), ("pathlib", "Path"), ("pathlib", "PosixPath"), ("torch", "Size"),
    ("pathlib._local", "PosixPath"),  # the same in Python 3.13
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"), ("torch.serialization", "_get_layout"),
}  # fmt: skip
"""Harmless types in the metadata of shards, besides torch's dtypes and the metadata's own classes."""


class Progress(Message):
    """State of the callback `Checkpointer` in a checkpoint."""

    iterations: Count
    epoch: Count
    rng: list[dict[str, Any]]
    loggers: dict[str, dict[str, int]]


class Sampled(Message):
    """State of the callback `RolloutCallback` in a checkpoint."""

    iteration: Count
    ledger: dict[str, int | float]


class LoaderState(Message):
    """State of `QuestionLoader` in a checkpoint."""

    epoch: Count
    cursor: Count
    served: Count
    questions: Count
    digest: Text
    seed: int


class DataState(Message):
    """State of `QuestionDataModule` in a checkpoint."""

    tokenizer: Text = ""


class ModuleState(Message):
    """Entries of `PolicyModule` in a checkpoint."""

    loaded: Text = ""
    skipped_in_a_row: Count = 0


class OptimizerState(Message):
    """State of an optimizer in a checkpoint."""

    state: dict[int, dict[str, Any]]
    param_groups: list[dict[str, Any]]


class Content(Message):
    """Entries of a Lightning checkpoint that every run needs."""

    epoch: Count
    global_step: Count
    state_dict: dict[Text, Any]
    loops: dict[Text, dict[str, Any]]
    callbacks: dict[Text, Any] = Field(default_factory=dict)
    lr_schedulers: Annotated[list[dict[str, Any]], Field(min_length=1)]


class WholeContent(Content):
    """Checkpoint in one file."""

    optimizer_states: Annotated[list[OptimizerState], Field(min_length=1)]


class ShardedContent(Content):
    """Part of a folder of shards that is not sharded."""

    param_groups: Annotated[list[list[dict[str, Any]]], Field(min_length=1)]
    """Parameter groups of each optimizer."""


STATES: dict[str, type[Message]] = {"Checkpointer": Progress, "RolloutCallback": Sampled}
"""Name of a callback → type of its state in a checkpoint."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Checkpoint IO that forces a file to disk before renaming it, unlike Lightning's IO."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:  # noqa: ARG002
        """Write `checkpoint` to `path`, a local file, after checking that a resume can load it.

        Raises:
            TypeError: if a state contains an object that a resume would refuse to load; see `check_states`.
        """
        with written_whole(Path(path)) as partial:
            try:
                with partial.open("wb") as file:
                    torch.save(checkpoint, file)
                torch.load(partial, map_location="cpu", weights_only=True, mmap=True)
            except OSError:  # of the disk, not of the content
                raise
            except Exception:
                check_states(checkpoint)
                raise

    def load_checkpoint(
        self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load a checkpoint. A folder of shards is returned in the form of a single-process checkpoint."""
        if Path(path).is_dir():
            return unsharded(Path(path))
        return super().load_checkpoint(path, map_location, weights_only)


def check_states(checkpoint: Mapping[str, Any]) -> None:
    """Apply `check_state` to a checkpoint, except the tensors of the model and the optimizer's state.

    Raises:
        TypeError: if a state can't be written, or can't be read again without running foreign code. The
            message names the callback, or the key in the checkpoint.
    """
    for name, state in checkpoint.get("callbacks", {}).items():
        check_state(state, f"callback {name}")
    for name, state in checkpoint.items():
        if name not in ("callbacks", "state_dict", "optimizer_states"):
            check_state(state, name)


def check_state(state: object, owner: str) -> None:
    """Check that a state can be written, and read again without running foreign code.

    Raises:
        TypeError: if the state contains anything but containers, numbers, texts and tensors. The message
            names `owner`.
    """
    written = io.BytesIO()
    try:
        torch.save(state, written)
        written.seek(0)
        torch.load(written, weights_only=True)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise TypeError(
            f"Expected the state of {owner} to hold containers, numbers, texts and tensors alone, since a "
            f"resume loads no other objects, but: {reason}. Return such a state from its `state_dict`."
        ) from error


def commit_folder(partial: Path, path: Path) -> None:
    """Force a folder of shards to disk, mark it as complete, and rename it to `path`."""
    check_metadata(partial)
    files = [file for file in sorted(partial.iterdir()) if file.name != MARKER]
    for file in files:
        sync(file)
    write_json(partial / MARKER, seals_of(files))
    remove(path)
    partial.replace(path)
    sync(path.parent)


def seals_of(files: Sequence[Path]) -> dict[str, list[int]]:
    """Return file name → [size in bytes, CRC-32] of each file. Files are read in parallel."""
    with ThreadPoolExecutor() as pool:
        sums = list(pool.map(checksum, files))
    return {file.name: [file.stat().st_size, value] for file, value in zip(files, sums, strict=True)}


def check_checkpoint(path: Path) -> None:
    """Read a whole checkpoint, and check that its content is the content that was written.

    Raises:
        DamagedFileError: if the checkpoint, or a part of it, is missing or damaged.
        pickle.UnpicklingError: if loading the checkpoint could run code.
    """
    with damage_explained("it"):
        if path.is_file():
            check_torch_file(path)
            return
        if not path.is_dir():
            raise DamagedFileError("it is neither a file nor a folder")
        if not (path / MARKER).is_file():  # reading a pipe of this name would wait for ever
            raise DamagedFileError(f"it has no {MARKER}")
        expected = read_seals(path)
        missing = [
            name for name in (METADATA, *expected) if name not in expected or not (path / name).is_file()
        ]
        if missing:
            raise DamagedFileError(f"it lacks {missing[0]}")
        for name, seal in seals_of([path / name for name in expected]).items():
            if expected[name] != tuple(seal):
                raise DamagedFileError(
                    f"{name} has size and checksum {seal} instead of {list(expected[name])}"
                )
        check_metadata(path)


def read_seals(path: Path) -> dict[str, tuple[int, int]]:
    """Read the seals of a folder of shards: file → (size in bytes, CRC-32).

    Raises:
        ForeignDataError: if the file of seals is damaged.
    """
    text = (path / MARKER).read_bytes()
    found = read_json(
        dict[Text, list[Count]], text, source=f"{path.name}/{MARKER}", remedy="Put a copy in its place."
    )
    return read(
        dict[Text, tuple[Count, Count]],
        {name: tuple(seal) for name, seal in found.items()},
        source=f"{path.name}/{MARKER}",
        remedy="Put a copy in its place.",
    )


def check_metadata(path: Path) -> None:
    """Check that loading a folder of shards runs no foreign code.

    torch unpickles the metadata and the entries of bytes.
    """
    with damage_explained(METADATA), (path / METADATA).open("rb") as file:
        _GuardedUnpickler(file).load()


class _GuardedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name == metadata.BytesStorageMetadata.__name__:
            raise pickle.UnpicklingError(
                "Expected the shards of a checkpoint to hold tensors alone, but there are entries of bytes, "
                "which torch would unpickle. Don't load it: it could run code."
            )
        known = (module, name) in SHARD_TYPES
        known |= module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        known |= (
            module == metadata.__name__ and getattr(getattr(metadata, name, None), "__module__", "") == module
        )
        if not known:
            raise pickle.UnpicklingError(
                "Expected the metadata of a checkpoint to hold types of torch alone, but it names "
                f"{module}.{name}. Don't load it: it could run code."
            )
        return super().find_class(module, name)


def unsharded(path: Path) -> dict[str, Any]:
    """Return the content of a folder of shards in the form of a checkpoint without sharding, on the CPU."""
    rest: dict[str, Any] = torch.load(path / REST, weights_only=True)
    optimizers = []
    for number, groups in enumerate(rest.pop("param_groups")):
        stored = tensors_of(path, f"optimizer_{number}.state.")
        names = [f"{name}." for group in groups for name in group["params"]]
        state = [
            {key.removeprefix(name): x for key, x in stored.items() if key.startswith(name)} for name in names
        ]
        places = iter(range(len(names)))
        numbered = [{**group, "params": [next(places) for _ in group["params"]]} for group in groups]
        optimizers.append({"state": dict(enumerate(state)), "param_groups": numbered})
    return {**rest, "state_dict": tensors_of(path, "state_dict."), "optimizer_states": optimizers}


def tensors_of(path: Path, prefix: str) -> dict[str, torch.Tensor]:
    """Return the unsharded tensors in a folder of shards whose names begin with `prefix`.

    The returned names lack the prefix.
    """
    check_metadata(path)
    stored = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    tensors: dict[str, Any] = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in stored.items()
        if name.startswith(prefix) and isinstance(entry, metadata.TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # on purpose
        dcp.load(tensors, checkpoint_id=path, no_dist=True)
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def content_of(path: Path) -> dict[str, Any]:
    """Return a checked checkpoint without the values of its tensors.

    `state_dict` maps names to tensors on the device `meta`. A folder of shards is returned without the
    optimizer's state.

    Raises:
        ForeignDataError: if an entry is missing or has a wrong type, as in a file of another program.
    """
    content: dict[str, Any]
    if path.is_file():
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        check_content(content, path)
        tensors = content["state_dict"]
    else:
        check_metadata(path)
        content = torch.load(path / REST, weights_only=True)
        stored = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
        tensors = {
            name.removeprefix("state_dict."): torch.empty(
                entry.size, dtype=entry.properties.dtype, device="meta"
            )
            for name, entry in stored.items()
            if name.startswith("state_dict.") and isinstance(entry, metadata.TensorStorageMetadata)
        }
        check_content({**content, "state_dict": tensors} if isinstance(content, dict) else content, path)
    return content | {"state_dict": {name: tensor.to("meta") for name, tensor in tensors.items()}}


def check_content(content: object, path: Path) -> None:
    """Check the entries of a checkpoint and their types, without the values of tensors.

    Raises:
        ForeignDataError: if an entry is missing or has a wrong type.
    """
    source = f"the checkpoint {path}"
    expected: type[Content] = ShardedContent if path.is_dir() else WholeContent
    found = read(expected, content, source=source, remedy=REMEDY)
    if missing := [
        name for name in STATES if "Checkpointer" in found.callbacks and name not in found.callbacks
    ]:
        raise ForeignDataError(
            f"Expected {source} to have callbacks.{missing[0]}, but it is missing. {REMEDY}"
        )
    for name, kind in STATES.items():
        if name in found.callbacks:
            read(kind, found.callbacks[name], source=f"callbacks.{name} of {source}", remedy=REMEDY)
    for name, value in found.state_dict.items():
        if not isinstance(value, torch.Tensor):
            raise ForeignDataError(
                f"Expected state_dict.{name} of {source} to be a tensor, but got {type(value).__name__}. {REMEDY}"
            )


def newest(directory: Path) -> Path | None:
    """Return the newest intact checkpoint in `directory`; None if there are no checkpoints.

    Damaged checkpoints are skipped with a warning.

    Raises:
        DamagedFileError: if there are checkpoints, but all of them are damaged.
        pickle.UnpicklingError: if the newest intact checkpoint could run code.
    """
    damaged = []
    for path in reversed(checkpoints_in(directory).values()):
        try:
            check_checkpoint(path)
        except DamagedFileError as torn:
            damaged.append(f"{path}: {torn}.")
            continue
        for each in damaged:
            rank_zero_warn(f"Skipping damaged checkpoint {each}")
        return path
    if damaged:
        raise DamagedFileError(
            f"Expected an intact checkpoint in {directory}, but all {len(damaged)} are damaged:\n"
            + "\n".join(f"  {each}" for each in damaged)
            + "\nPut a copy of one in its place."
        )
    return None


def checkpoint_at(path: str | Path, setting: str) -> Path:
    """Check and return the checkpoint at a path, or the newest intact checkpoint of a run's directory.

    Raises:
        FileNotFoundError, DamagedFileError: if there is no intact checkpoint; the message names `setting`.
    """
    path = existing(path, setting)
    if (path / "checkpoints").is_dir():
        if (found := newest(path / "checkpoints")) is None:
            raise FileNotFoundError(
                f"Expected a complete checkpoint in {path / 'checkpoints'}, but there is none. Did the run "
                f"end before its first one? Give another {setting}, or lower callbacks.checkpoint.every."
            )
        return found
    try:
        check_checkpoint(path)
    except DamagedFileError as torn:
        raise DamagedFileError(
            f"Expected a complete checkpoint at {path}, but {torn}. Give the directory of the run as "
            f"{setting}, which takes the newest complete one."
        ) from torn
    return path


def resolve(resume: str | Path | None, directory: Path) -> Path | None:
    """Check and return the checkpoint that a run resumes from; None if a new run starts.

    `resume` is `auto` for the newest intact checkpoint in `directory`, if there is one, or the path of a
    checkpoint or of a run's directory.

    Raises:
        FileNotFoundError: if there is nothing at the path.
        DamagedFileError: if the checkpoint is damaged, or all checkpoints in `directory` are damaged.
        pickle.UnpicklingError: if the checkpoint could run code.
    """
    if resume is None:
        return None
    if str(resume) != "auto":
        return checkpoint_at(resume, "resume")
    try:
        found = newest(directory)
    except DamagedFileError as damaged:
        raise DamagedFileError(
            f"{damaged} To start anew, set another name=…, or move {directory.parent} away."
        ) from None
    if found is None:
        rank_zero_info(f"resume=auto: no complete checkpoint in {directory}; the run starts anew.")
    return found


def set_aside(directory: Path, after: int) -> None:
    """Move checkpoints of iterations above `after` to `<directory>.previous`; delete unfinished ones."""
    for path in list(directory.glob(partial_path(directory / "*").name)):
        remove(path)
    later = [path for iteration, path in checkpoints_in(directory).items() if iteration > after]
    if not later:
        return
    names = (f"{directory.name}.previous{f'-{number}' if number > 1 else ''}" for number in count(1))
    previous = next(path for path in map(directory.with_name, names) if not path.exists())
    previous.mkdir()
    for path in later:
        path.replace(previous / path.name)
    rank_zero_warn(
        f"Moved {len(later)} checkpoints of iterations after {after} to {previous}: this run makes its own."
    )
