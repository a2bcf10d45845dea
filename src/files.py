"""Atomic writes of files and folders, CRC-32 checks on reading, and locks between processes."""

import csv
import errno
import fcntl
import json
import os
import pickle
import re
import shutil
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk is full, the quota used up, the file too large


class DamagedFileError(ValueError):
    """Error for a file that was not written completely, or was damaged afterwards."""


def partial_path(path: Path) -> Path:
    """Return the temporary name of `path` during writing or deletion."""
    return path.with_name(f".partial-{path.name}")


def check_kind(path: Path, kind: Literal["file", "folder"], remedy: str = "Move it away.") -> None:
    """Check that `path` is free or is a file or folder, as `kind` says.

    Raises:
        FileExistsError: if something else is there, such as a pipe or a broken link.
    """
    right = path.is_dir() if kind == "folder" else path.is_file()
    if os.path.lexists(path) and not right:
        raise FileExistsError(f"Expected {path} to be a {kind}, but it is something else. {remedy}")


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a path to write a file to; rename the file to `path` if the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    with disk_full_explained(path), removed_on_error(partial):
        yield partial
        sync(partial)
        partial.replace(path)
    sync(path.parent)


@contextmanager
def folder_written_whole(path: Path) -> Iterator[Path]:
    """Yield an empty folder to write to; rename it to `path` if the block succeeds.

    If `path` exists, its other files stay in it.
    """
    path = path.absolute()
    partial = partial_path(path)
    begin_folder(partial)
    with disk_full_explained(path), removed_on_error(partial):
        yield partial
        files = sorted(partial.iterdir())
        for file in files:
            sync(file)
        if path.exists():
            for file in files:
                file.replace(path / file.name)
            partial.rmdir()
            sync(path)
        else:
            partial.replace(path)
    sync(path.parent)


def begin_folder(partial: Path) -> None:
    """Make an empty folder `partial`, to be renamed once complete."""
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, in UTF-8."""
    with written_whole(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_section(page: Path, name: str, text: str) -> None:
    """Replace the text between the marks `<!-- begin name -->` and `<!-- end name -->` of a page.

    Raises:
        ValueError: if the page lacks one of the marks.
    """
    between = re.compile(rf"(?<=<!-- begin {name} -->\n).*(?=<!-- end {name} -->)", re.DOTALL)
    written, count = between.subn(lambda _: f"{text}\n", page.read_text(encoding="utf-8"))
    if not count:
        raise ValueError(f"Expected the marks <!-- begin {name} --> and <!-- end {name} --> in {page}.")
    write_text(page, written)


def write_json(path: Path, content: Any) -> None:
    """Write `content` to `path` atomically, as indented JSON."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a CSV file atomically."""
    with written_whole(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def append_csv(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows to a CSV file, with a header if the file is new; without rows, create no file."""
    if rows:
        new = not path.exists()
        with disk_full_explained(path), path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            if new:
                writer.writeheader()
            writer.writerows(rows)


def read_csv(path: Path, most: int | None = None) -> tuple[Sequence[str], list[dict[str, str]]]:
    """Return the columns of a CSV file and its first `most` rows, except rows that a dying process cut off.

    Both are empty if there is no file.

    Raises:
        ValueError: if the file is not a CSV file.
    """
    if most == 0 or not path.exists():
        return [], []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = list(islice(reader, most))
            return reader.fieldnames or [], [
                row for row in rows if None not in row and None not in row.values()
            ]
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(
            f"Expected a table in {path}, but it can't be read: {error}. Put a copy in its place, or move it "
            "away: the run goes on without it."
        ) from error


def sync(path: Path) -> None:
    """Force a file's content, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(file: IO[Any], advice: str) -> None:
    """Lock an open file until it is closed.

    Raises:
        RuntimeError: if another process has locked the file; the message ends with `advice`.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RuntimeError(
            f"Expected {file.name} to be free, but another process is using it. {advice}"
        ) from error
    except OSError as error:
        warnings.warn(
            f"Expected a file system that can lock {file.name}, but: {error}. Make sure yourself that no "
            "second process uses it.",
            stacklevel=2,
        )


def checksum(path: Path) -> int:
    """Return the CRC-32 of a file's content."""
    value = 0
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            value = zlib.crc32(part, value)
    return value


def check_torch_file(path: Path) -> None:
    """Compare each record in a file of `torch.save` with its CRC-32, and check that torch can load the file.

    Raises:
        DamagedFileError: if the content has changed since it was written.
        pickle.UnpicklingError: if the file is intact but could run code.
    """
    import torch

    with damage_explained("it"):
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
            if broken:  # torch does not check it when loading
                raise DamagedFileError(f"the checksum of its record {broken} is wrong")
        # torch is stricter about the table of contents
        torch.load(path, map_location="cpu", weights_only=True, mmap=True)


@contextmanager
def damage_explained(what: str) -> Iterator[None]:
    """Convert any error during reading into a `DamagedFileError` whose message begins with `what`."""
    try:
        yield
    except (pickle.UnpicklingError, DamagedFileError):
        raise
    except Exception as error:
        raise DamagedFileError(f"{what} can't be read ({type(error).__name__}: {error})") from error


def remove(path: Path) -> None:
    """Delete a file or folder.

    The path is renamed first, so that a half-deleted folder is not mistaken for a complete one.
    """
    if os.path.lexists(path):
        doomed = partial_path(path)
        shutil.rmtree(doomed, ignore_errors=True)
        _delete(path.replace(doomed))


@contextmanager
def removed_on_error(partial: Path) -> Iterator[None]:
    """Delete the file or folder `partial` if the block fails, to free disk space."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            _delete(partial)
        raise


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def disk_full_explained(path: Path) -> Iterator[None]:
    """Raise an OSError with advice if the block fails because the disk is full."""
    try:
        yield
    except BaseException as error:  # torch's error for several ranks is no Exception
        causes = list(_causes(error))
        real = next(
            (cause for cause in causes if isinstance(cause, OSError | KeyboardInterrupt | SystemExit)), None
        )
        # When a write falls short, torch's zip writer raises an error of its own, which hides the reason or
        # has none.
        hidden = any("inline_container" in str(cause) for cause in causes)
        number = None
        if isinstance(real, OSError):
            number = real.errno
        elif hidden and real is None:
            number = errno.ENOSPC
        if number not in NO_ROOM:
            if hidden and real is not None:
                raise real from None
            raise
        free = shutil.disk_usage(path.parent).free
        raise OSError(
            number,
            f"Expected room to write it, but: {os.strerror(number).lower()}; {free / 2**20:,.0f} MiB are "
            "free. What was complete before is intact. Make room, or lower callbacks.checkpoint.keep; then "
            "continue the run with resume=auto",
            str(path),
        ) from error


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes; for torch's `CheckpointException`, also the errors of each rank."""
    yield error
    ranks = [failure[0] for failure in getattr(error, "failures", {}).values()]
    for cause in filter(None, [error.__cause__ or error.__context__, *ranks]):
        yield from _causes(cause)
