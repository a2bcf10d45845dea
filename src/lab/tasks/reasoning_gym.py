"""Questions of reasoning-gym's generators (https://pypi.org/project/reasoning-gym), with verifiers of tagrpo.

`reasoning_gym.yaml` has the form of the answer to each task, or the reason why a task is not supported. The
package's scorers are never called, because several of them evaluate the answer as Python.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from collections.abc import Generator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import yaml

from ...datamodules.overlap import words
from ...datamodules.sources.base import Source, SourceReport, plain
from ...foreign import ForeignDataError, Message, Text, read_json
from ...rewards.child_environment import child_environment
from ...rewards.child_process import PATIENCE, ChildProcess
from ...rewards.plain_answer import PlainAnswerReward
from ...seeds import derive_seed
from ...types import QuestionGroup
from .child_lines import complete_line
from .verifiers import check_seconds

TASKS: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
)
"""Task → arguments of its verifier, such as the `form` of the answer, or why the task is `unsupported`."""
PARTS = 10
"""Number of parts into which questions are divided by a hash."""
SPLITS = {"train": range(7), "test": range(7, PARTS)}
"""Split → parts of the questions that belong to it."""
REMEDY = "Correct data.options, or set data.task to another."
PROGRAM = """
import json, os, random, sys
pipe = os.fdopen(os.dup(1), "w", encoding="ascii")
os.dup2(2, 1)  # some generators print
from reasoning_gym.factory import create_dataset
task, options, seed, size = json.loads(sys.argv[1])
random.seed(seed)  # some do not pass their seed on
items = create_dataset(task, seed=seed, size=size, **options)
for number in range(size):
    try:
        item = items[number]
    except RuntimeError:  # a maze may have no path of the length that is asked for
        continue
    answers = item["metadata"].get("valid_answers") or [item["answer"]]
    difficulty = item["metadata"].get("difficulty")
    row = {"question": item["question"], "answers": answers, "difficulty": difficulty}
    print(json.dumps({"item": row}, default=str), file=pipe, flush=True)
print(json.dumps({"item": None}), file=pipe, flush=True)
"""


class Item(Message):
    """Question that a generator of reasoning-gym has made."""

    question: Text
    """Text of the question."""
    answers: list[Text]
    """Correct answers."""
    difficulty: Any
    """The generator's description of the difficulty."""


class ItemLine(Message):
    """Line in the output of `PROGRAM`: an item, or the mark of the end."""

    item: Item | None
    """An item; None marks the end."""


def verifier(task: str) -> PlainAnswerReward:
    """Return the verifier of a task.

    Raises:
        ValueError: if the task is unknown or not supported.
    """
    known = TASKS.get(task, {"unsupported": f"it is none of {', '.join(TASKS)}"})
    if "unsupported" in known:
        raise ValueError(f"Expected a supported task in data.task, but got {task!r}: {known['unsupported']}.")
    return PlainAnswerReward(**{name: value for name, value in known.items() if name != "note"})  # type: ignore[abstract]


class ReasoningGymSource(Source):
    """Source of questions of one task. A smaller source has the first questions of a larger source.

    No question of one split has the same words and symbols as a question of the other split, even in another
    order. Questions whose answer does not have the task's form, for example because it is empty, are left
    out. `metadata` has `task`, `split` and the generator's `difficulty`.

    Args:
        task: A supported task.
        split: `train` or `test`.
        size: Number of questions. At most 20 · `size` + 100 items are generated; the report warns if fewer
            than `size` of them are suitable.
        options: Settings of the generator.
        seed: Seed for generating the questions.
        load_seconds: Time limit for each item, in seconds.

    Raises:
        ValueError: if the split is unknown or the task is not supported; when loading, if the generator
            fails.
        ForeignDataError: when loading, if an item is malformed or takes too long.
    """

    def __init__(
        self,
        task: str,
        split: str = "train",
        size: int = 512,
        options: Mapping[str, Any] | None = None,
        seed: int = 0,
        load_seconds: float = 600.0,
    ) -> None:
        if split not in SPLITS:
            raise ValueError(f"Expected `split` to be one of {', '.join(SPLITS)} but got {split!r}.")
        self.verifier, self.load_seconds = verifier(task), check_seconds(load_seconds)
        self.task, self.split, self.size, self.options, self.seed = (
            task,
            split,
            size,
            dict(options or {}),
            seed,
        )

    def load(self) -> list[QuestionGroup]:
        """Generate the questions."""
        found: dict[str, QuestionGroup] = {}
        with closing(self._items(20 * self.size + 100)) as items:
            for item in items:
                key = f"{sorted(words(item.question))} {sorted(plain(item.question))}"
                if zlib.crc32(key.encode()) % PARTS in SPLITS[self.split] and key not in found:
                    with suppress(ValueError):
                        self.verifier.check_reference(item.answers)
                        facts = {"task": self.task, "split": self.split, "difficulty": item.difficulty}
                        id = f"{self.task}-{self.split}-{self.seed}-{len(found):05d}"
                        found[key] = QuestionGroup(id, item.question, (), tuple(item.answers), facts)
                if len(found) == self.size:
                    break
        fewer = [f"Expected {self.size} questions, but found {len(found)}"] * (len(found) < self.size)
        self.report = SourceReport(origin=f"reasoning-gym, {self.task}", read=len(found), warnings=fewer)
        return list(found.values())

    def _items(self, count: int) -> Generator[Item]:
        """Yield items from a separate process, which has a fixed hash seed and its own random states."""
        job = json.dumps(
            [self.task, self.options, derive_seed(self.seed, "reasoning_gym", self.task) % 2**31, count]
        )
        command = [sys.executable, "-P", "-W", "ignore", "-c", PROGRAM, job]
        expected = f"Expected reasoning-gym to generate {self.task} with {self.options}"
        buffer = bytearray()
        child = ChildProcess(command, child_environment(), f"reasoning-gym's {self.task}")
        try:
            for number in range(count + 1):  # one more for the end
                source = f"item {number} of reasoning-gym's {self.task}"
                try:
                    deadline = time.monotonic() + self.load_seconds
                    content = complete_line(child.output, buffer, deadline, source, REMEDY)
                except TimeoutError:
                    raise ForeignDataError(
                        f"{expected}, but {source} took more than {self.load_seconds:g} s. Raise "
                        "data.load_seconds, or make the items easier with data.options."
                    ) from None
                if content is None:
                    code = child.end(PATIENCE)
                    raise ValueError(
                        f"{expected}, but it failed with exit code {code}; see its error above. {REMEDY}"
                    )
                item = read_json(ItemLine, content, source=source, remedy=REMEDY).item
                if item is None:
                    return
                yield item
        finally:
            child.end()
