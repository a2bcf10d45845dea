"""Engine that keeps responses of servers on disk until a checkpoint contains them.

A server's responses have been paid for. After a kill they are found again, and the server is not asked twice.
An engine of this machine needs no such files: a resumed run samples its responses again from the same weights
and seeds.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...digests import bit_sum, json_digest
from ...distributed import max_over_ranks, rank, world_size
from ...files import DamagedFileError, check_torch_file, written_whole
from ...types import Completion, Deliver, Engine, Finish, Request, ignore, require
from ...types.checks import name_of
from ..responses import packed, request_key, unpacked
from .base import ServerEngine, check_responses


class CachedEngine(Engine):
    """Engine that answers a training request from a file if the request was answered before.

    There is one file per training request and rank, `<iteration>-<request>-<rank>.pt`. A file is used if
    weights (to the bit), prompts, sampling and seed are equal. A file that is damaged, or has other weights,
    counts as absent. Requests of evaluations are passed on.

    Args:
        make: Function that returns the engine that samples.
        folder: Folder of the files.
        covered: Function that returns the number of iterations before the newest checkpoint. Files of these
            iterations are deleted.
    """

    asynchronous = True

    def __init__(self, make: Callable[[], Engine], folder: str | Path, covered: Callable[[], int]) -> None:
        self.engine = make()
        require(self.engine, Engine, "rollout.engine")
        self.asynchronous = self.engine.asynchronous
        self.__name__ = name_of(self.engine)  # for errors about what it returns
        self.folder = Path(folder)
        self.covered = covered
        self._weights = ""

    def sync(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Pass the weights on, and note their digest."""
        sums: dict[str, int] = {}

        def passed_on() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in parameters:
                sums[name] = bit_sum(tensor)
                yield name, tensor

        self.engine.sync(passed_on())
        self._weights = json_digest(sums)

    def generate(self, request: Request, deliver: Deliver = ignore) -> list[list[Completion]]:
        """Return the responses in the request's file; if absent, sample and write the file. Collective."""

        def start(request: Request, deliver: Deliver) -> Finish:
            return partial(self.engine.generate, request, deliver)

        return self._answer(request, deliver, start)()

    def generate_async(self, request: Request, deliver: Deliver = ignore) -> Finish:
        """Return a function that waits for the responses; start sampling now if there is no file of them.

        Both this method and the returned function are collective.
        """
        return self._answer(request, deliver, self.engine.generate_async)

    def _answer(
        self, request: Request, deliver: Deliver, start: Callable[[Request, Deliver], Finish]
    ) -> Finish:
        """Return a function that returns the responses; `start` begins to sample absent responses."""
        if request.iteration is None:
            return start(request, deliver)
        path = self.folder / f"{request.iteration:06d}-{request_key(request)}-{rank()}.pt"
        found = self._find(path)
        if found is not None:
            for prompt, completions in enumerate(found):
                if completions:
                    deliver(prompt, completions)
        if not max_over_ranks(found is None):
            assert found is not None
            return partial(list, found)
        # Sampling needs every rank; a rank that has found its responses asks for none.
        asked = request if found is None else request._replace(prompts=[], num_samples=[])
        finish = start(asked, deliver)

        def finished() -> list[list[Completion]]:
            sampled = finish()
            if found is not None:
                return found
            completions = check_responses(sampled, request, self.engine)
            self._keep(path, completions)
            return completions

        return finished

    def _find(self, path: Path) -> list[list[Completion]] | None:
        """Return the [P][G] responses of a file; None if it is absent, damaged or of other weights."""
        if not path.exists():
            return None
        try:
            check_torch_file(path)
        except DamagedFileError as damage:
            warnings.warn(
                f"Skipping the damaged rollouts {path}: {damage}. They are sampled again.", stacklevel=2
            )
            return None
        found = torch.load(path, weights_only=True)
        return unpacked(found["content"]) if found["weights"] == self._weights else None

    def _keep(self, path: Path, completions: Sequence[Sequence[Completion]]) -> None:
        """Write the [P][G] responses to a file; delete files of iterations before the newest checkpoint."""
        try:
            with written_whole(path) as partial_file:
                torch.save({"weights": self._weights, "content": packed(completions)}, partial_file)
        except (OSError, RuntimeError) as error:
            # Training can do without it; if the disk is full, the next checkpoint will say so.
            message = (
                f"Could not keep rollouts in {path}: {error}. After a crash they would be sampled again."
            )
            warnings.warn(message, stacklevel=2)
        prune(self.folder, self.covered())

    def sleep(self) -> None:
        """Let the engine give memory back."""
        self.engine.sleep()

    def close(self) -> None:
        """Close the engine, and delete the files of iterations before the newest checkpoint."""
        prune(self.folder, self.covered())
        self.engine.close()


def keep_paid(
    make: Callable[[], Engine], folder: str | Path, covered: Callable[[], int]
) -> Callable[[], Engine]:
    """Return a function that makes a run's engine: a `CachedEngine` around servers, otherwise that of `make`.

    Arguments are those of `CachedEngine`. Files of iterations before the newest checkpoint are deleted.
    """
    prune(folder, covered())
    kind = engine_class(make)
    if kind is not None and issubclass(kind, ServerEngine):
        return partial(CachedEngine, make, folder, covered)
    return make


def engine_class(make: Callable[[], Engine]) -> type | None:
    """Return the class of the engine that `make` would return, without calling `make`; None if unknown."""
    made: Any = make.func if isinstance(make, partial) else make
    if made is CachedEngine:
        return engine_class(make.args[0])  # type: ignore[attr-defined]
    return made if isinstance(made, type) else None


def prune(folder: str | Path, before: int) -> None:
    """Delete this rank's files of iterations below `before`, also partial files of killed processes.

    After a resume with fewer ranks, rank 0 also deletes the files of the ranks that are gone.
    """
    for path in Path(folder).glob("*-*-*.*"):
        *_, iteration, _, last = path.name.split("-")
        writer = int(last.partition(".")[0])
        mine = writer == rank() or (rank() == 0 and writer >= world_size())
        if mine and int(iteration) < before:
            path.unlink(missing_ok=True)
