"""Questions of reasoning-gym's generators (https://pypi.org/project/reasoning-gym), with verifiers of tagrpo.

`reasoning_gym.yaml` has the form of the answer to each task, or the reason why a task is left out. The
package's
scorers are never called: several evaluate the answer as Python.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from ...datamodules.overlap import words
from ...datamodules.sources.base import Source, SourceReport, plain
from ...rewards.child_environment import child_environment
from ...rewards.plain_answer import PlainAnswerReward
from ...seeds import derive_seed
from ...types import QuestionGroup

TASKS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
"""Task → the `form` of its answer and more arguments of its verifier, or `unsupported`: the reason."""
PARTS = 10
"""Number of parts into which questions are divided by a hash."""
SPLITS = {"train": range(7), "test": range(7, PARTS)}
"""Split → parts."""
PROGRAM = """
import json, random, signal, sys
from reasoning_gym.factory import create_dataset
signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # ends silently when the reader has enough
task, options, seed, size = json.loads(sys.argv[1])
pipe, sys.stdout = sys.stdout, sys.stderr  # some generators print
random.seed(seed)  # some do not pass their seed on
items = create_dataset(task, seed=seed, size=size, **options)
for number in range(size):
    try:
        item = items[number]
    except RuntimeError:  # a maze may have no path of the length that is asked for
        continue
    answers = item["metadata"].get("valid_answers") or [item["answer"]]
    row = item["question"], answers, item["metadata"].get("difficulty")
    print(json.dumps(row, default=str), file=pipe, flush=True)
"""


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
    """Source of questions of one task. A smaller `size` gives the first questions of a larger one.

    Questions of the two splits differ in words and symbols, even in another order. Questions whose answer
    lacks the task's form, for example because it is empty, are left out. `metadata` has `task`, `split` and
    the generator's `difficulty`.

    Args:
        task: A supported task.
        split: `train` or `test`.
        size: Number of questions; the report warns if 20 items for each are too few to find them.
        options: Settings of the generator.
        seed: Seed for drawing questions within the split's part.

    Raises:
        ValueError: if the split is unknown or the task not supported; on loading, the generator's complaint.
    """

    def __init__(
        self, task: str, split: str = "train", size: int = 512, options: Mapping[str, Any] | None = None, seed: int = 0
    ) -> None:
        if split not in SPLITS:
            raise ValueError(f"Expected `split` to be one of {', '.join(SPLITS)} but got {split!r}.")
        self.verifier = verifier(task)
        self.task, self.split, self.size, self.options, self.seed = task, split, size, dict(options or {}), seed

    def load(self) -> list[QuestionGroup]:
        """Generate the questions."""
        found: dict[str, QuestionGroup] = {}
        for question, answers, difficulty in self._items(20 * self.size + 100):
            key = f"{sorted(words(question))} {sorted(plain(question))}"
            if zlib.crc32(key.encode()) % PARTS in SPLITS[self.split] and key not in found:
                with suppress(ValueError):
                    self.verifier.check_reference(answers)
                    facts = {"task": self.task, "split": self.split, "difficulty": difficulty}
                    id = f"{self.task}-{self.split}-{self.seed}-{len(found):05d}"
                    found[key] = QuestionGroup(id, question, (), tuple(answers), facts)
            if len(found) == self.size:
                break
        fewer = [f"Expected {self.size} questions, but found {len(found)}"] * (len(found) < self.size)
        self.report = SourceReport(origin=f"reasoning-gym, {self.task}", read=len(found), warnings=fewer)
        return list(found.values())

    def _items(self, count: int) -> Iterator[tuple[str, list[str], Any]]:
        """Yield question, answers and difficulty.

        The items are generated in a process with a fixed hash seed and a separate numpy state.
        """
        job = json.dumps([self.task, self.options, derive_seed(self.seed, "reasoning_gym", self.task) % 2**31, count])
        command = [sys.executable, "-P", "-W", "ignore", "-c", PROGRAM, job]
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=child_environment(), **pipes) as process:
            yield from map(json.loads, process.stdout or ())
            if process.wait():
                raise ValueError(
                    f"Expected reasoning-gym to generate {self.task} with {self.options}; see its error above."
                )
