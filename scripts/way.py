"""The way of one batch through the files of `src`: how often a reader who follows it enters a file, and climbs.

    python scripts/way.py                    # GRPO and TA-GRPO on the embedded task, on the CPU
    python scripts/way.py experiment=dapo    # another experiment, or further settings

The second batch of a small run is followed twice: from the rollout callback to scored rollouts, and from the training
step to the last optimizer step. What is counted:

- A function is **met** when it is called for the first time with the batch: an argument is the batch, a part of it, or
  what a function that was met has made of it (tensors, requests, responses, losses, sums, …), directly or in a
  container or an attribute. Weights, seeds, settings and numbers alone are not followed. Functions within a function
  belong to it; properties, generated methods and the data types of `types` do not count.
- A part that a setting exchanges (a class that derives from a protocol of `tagrpo.types`) and a torch module are met, but
  not looked into: what an engine, a verifier, a strategy, a loss or a model does inside is its own affair.
- A **stay** is a stretch of functions, in the order in which they are met, that lie in one file. To come back to the
  calling file is no stay unless a further function of that file is met.
- A **return** is a stay in a file that was left before: stays = files + returns.
- A **climb** is a stay in a higher room than that of the stay before. A room is higher than all rooms that it imports
  from (`scripts/rooms.py`); the files of `src` itself are at the bottom.
"""

import importlib.util
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import tagrpo

SRC = Path(tagrpo.__path__[0])
BATCH = 2
"""Number of the batch that is followed: the first one makes the engine."""
SMALL = [
    "iterations=2", "threads=1", "seed=0", "data.train.size=8", "data.batch_size=2",
    "data.samples_per_prompt=4", "data.evaluation_samples=1", "++trainer.limit_val_batches=0",
    "+trainer.enable_progress_bar=false", "callbacks=[checkpoint]",
]  # fmt: skip
PARTS = {
    "roll-out": ("callbacks/rollout.py", "on_train_batch_start"),
    "update": ("policy_module.py", "training_step"),
}
"""Part of the way → the file and the function that it begins with. The update ends with the last optimizer step."""
NUMBERS = (bool, int, str, bytes, type(None), type)
"""Values that say nothing of where they come from."""


@dataclass
class Stay:
    """Functions of one file that the batch meets one after the other."""

    file: str
    floor: int
    functions: list[str] = field(default_factory=list)


class Way:
    """Way of the batch from a start: the functions that it meets, in order."""

    def __init__(self) -> None:
        self._met: dict[tuple[str, str], None] = {}  # in order
        self._end: int | None = None

    def meet(self, file: str, function: str) -> None:
        """Add a function, unless it was met before."""
        self._met.setdefault((file, function))

    def step(self) -> None:
        """End the way here, unless another optimizer step follows."""
        self._end = len(self._met)

    @property
    def stays(self) -> list[Stay]:
        """Stays in the order in which the functions are met."""
        stays: list[Stay] = []
        for file, function in list(self._met)[: self._end]:
            if not stays or stays[-1].file != file:
                stays.append(Stay(file, floor_of(room_of(file))))
            stays[-1].functions.append(function)
        return stays

    @property
    def files(self) -> int:
        """Number of files on the way."""
        return len({stay.file for stay in self.stays})

    @property
    def returns(self) -> int:
        """Number of stays in a file that was left before."""
        return len(self.stays) - self.files

    @property
    def climbs(self) -> int:
        """Number of stays in a higher room than that of the stay before."""
        floors = [stay.floor for stay in self.stays]
        return sum(after > before for before, after in pairwise(floors))

    def lines(self) -> Iterator[str]:
        """Yield a line for each stay."""
        seen: set[str] = set()
        before = self.stays[0].floor
        for number, stay in enumerate(self.stays, 1):
            marks = ("up" if stay.floor > before else "", "again" if stay.file in seen else "")
            yield f"{number:3}  {marks[0]:2} {marks[1]:5}  {stay.file}: {', '.join(stay.functions)}"
            seen.add(stay.file)
            before = stay.floor


class Followed:
    """Objects that belong to the batch, kept alive so that no other object gets their identity."""

    def __init__(self) -> None:
        self._kept: dict[int, object] = {}

    def learn(self, value: object, depth: int = 5) -> None:
        """Add a value and its parts."""
        if isinstance(value, NUMBERS) or id(value) in self._kept or is_module(value) or is_part(value):
            return
        self._kept[id(value)] = value
        if depth:
            for part in parts_of(value):
                self.learn(part, depth - 1)

    def has(self, value: object, depth: int = 2) -> bool:
        """Return whether a value is one of the objects, or holds one."""
        if isinstance(value, NUMBERS) or is_module(value) or is_part(value):
            return False
        if id(value) in self._kept:
            return True
        return depth > 0 and any(self.has(part, depth - 1) for part in parts_of(value))


def parts_of(value: object) -> Iterable[object]:
    """Return the items of a container, or the attributes of an object of the package."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple):
        return value
    if type(value).__module__.startswith("tagrpo") and hasattr(value, "__dict__"):
        return [
            part for part in vars(value).values() if not isinstance(part, float)
        ]  # settings are numbers, too
    return ()


def is_module(value: object) -> bool:
    """Return whether a value is a torch module: it has weights, which are not followed."""
    from torch import nn

    return isinstance(value, nn.Module)


def is_part(value: object) -> bool:
    """Return whether a value is a model, or of a class that derives from a protocol of `tagrpo.types`."""
    from lightning.pytorch import LightningModule

    if isinstance(value, LightningModule):
        return False
    return is_module(value) or any(
        kind.__module__ == "tagrpo.types.protocols" for kind in type(value).__mro__
    )


class Follower:
    """Profiler that records the way of the batch number `BATCH` through `PARTS`."""

    def __init__(self) -> None:
        self.ways: dict[str, Way] = {}
        self._begun = dict.fromkeys(PARTS, 0)
        self._followed = Followed()
        self._top: FrameType | None = None
        self._part: FrameType | None = None
        self._carrying: set[FrameType] = set()

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        """Take an event of `sys.setprofile`."""
        if event == "call":
            self._called(frame)
        elif event == "return":
            self._returned(frame, value)

    def _called(self, frame: FrameType) -> None:
        file = file_of(frame.f_code)
        if file is None:
            if self._top is not None and is_step(frame.f_code):
                self._way.step()
            return
        if self._part is not None:
            return
        if self._top is None:
            self._begin(frame, file)
            return
        arguments = arguments_of(frame)
        if not any(map(self._followed.has, arguments.values())):
            return
        self._carrying.add(frame)
        if counts(frame.f_code, file):
            self._way.meet(file, frame.f_code.co_qualname.partition(".<locals>")[0])
        if is_part(arguments.get("self")):
            self._part = frame

    def _begin(self, frame: FrameType, file: str) -> None:
        for name, (ending, function) in PARTS.items():
            if file.endswith(ending) and frame.f_code.co_name == function:
                self._begun[name] += 1
                if self._begun[name] == BATCH:
                    self._top = frame
                    self._way = self.ways[name] = Way()
                    self._way.meet(file, frame.f_code.co_qualname)
                    self._followed.learn(frame.f_locals["batch"])

    def _returned(self, frame: FrameType, value: Any) -> None:
        if frame in self._carrying:
            self._followed.learn(value)
            if frame.f_code.co_name in ("__init__", "__post_init__"):
                self._followed.learn(frame.f_locals["self"])
            self._carrying.discard(frame)
        if frame is self._part:
            self._part = None
        if frame is self._top:
            self._top = None


def file_of(code: CodeType) -> str | None:
    """Return the file of a function, relative to `SRC`; None if it is not of the package."""
    path = Path(code.co_filename)
    return path.relative_to(SRC).as_posix() if path.is_relative_to(SRC) else None


def is_step(code: CodeType) -> bool:
    """Return whether a function is the step of one of torch's optimizers."""
    return code.co_name == "step" and "torch/optim/" in code.co_filename


def arguments_of(frame: FrameType) -> dict[str, Any]:
    """Return the arguments of a call, and what a function within a function takes from around it."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    names = [*code.co_varnames[:count], *code.co_freevars]
    return {name: frame.f_locals[name] for name in names if name in frame.f_locals}


def counts(code: CodeType, file: str) -> bool:
    """Return whether a function counts: no data type, no property, no special method but making and calling."""
    if file == "types/data.py" or code.co_name.startswith("<"):
        return False
    if code.co_name.startswith("__") and code.co_name not in ("__init__", "__call__"):
        return False
    owner: Any = sys.modules["tagrpo." + file.removesuffix(".py").replace("/", ".")]
    for name in code.co_qualname.split("."):
        owner = vars(owner).get(name) if hasattr(owner, "__dict__") else None
    return not isinstance(owner, property)


@cache
def rooms() -> dict[str, set[str]]:
    """Return room → the rooms that it imports from, as the script `rooms.py` of the same checkout has them."""
    spec = importlib.util.spec_from_file_location("rooms", SRC.parent / "scripts" / "rooms.py")
    assert spec is not None
    assert spec.loader is not None
    script: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    found: dict[str, set[str]] = script.rooms()
    return found


def room_of(file: str) -> str:
    """Return the room of a file, `.` for those in `src` itself."""
    folders = [folder.as_posix() for folder in Path(file).parents]
    return next((folder for folder in folders if folder in rooms()), ".")


@cache
def floor_of(room: str) -> int:
    """Return 0 for the files of `src` itself, and for a room one more than for the highest that it imports from."""
    if room == ".":
        return 0
    return 1 + max((floor_of(other) for other in rooms()[room]), default=0)


def ways(overrides: Iterable[str]) -> dict[str, Way]:
    """Train two iterations with some settings; return the ways of the second batch."""
    from tagrpo.settings.config import build, compose_run

    with tempfile.TemporaryDirectory() as folder:
        run = build(compose_run(folder, [*SMALL, *overrides]))
        follower = Follower()
        sys.setprofile(follower)
        try:
            run.trainer.fit(run.module, run.datamodule)
        finally:
            sys.setprofile(None)
            run.rollout.pipeline.close()
    return follower.ways


def main() -> None:
    """Console entry point."""
    chosen = [sys.argv[1:]] if len(sys.argv) > 1 else [["experiment=grpo"], ["experiment=ta_grpo"]]
    rows = ["| run | part | stays | files | returns | climbs |", "|---|---|---|---|---|---|"]
    for overrides in chosen:
        for name, way in ways(overrides).items():
            title = " ".join(overrides)
            print(f"\n{title}, {name}", *way.lines(), sep="\n")
            rows.append(
                f"| {title} | {name} | {len(way.stays)} | {way.files} | {way.returns} | {way.climbs} |"
            )
    print("", *rows, sep="\n")


if __name__ == "__main__":
    main()
