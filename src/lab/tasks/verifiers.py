"""Single-turn environments of the package verifiers (https://pypi.org/project/verifiers), with their rewards.

The package needs another version of openai than this project, and an environment is third-party code. The
package and the environment are installed in a separate Python (`data.python`), whose processes load tasks and
score responses within limits. No code of an environment runs in the present process. The separate processes
have no terminal, and only the environment variables of `child_environment` and `data.variables`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ...datamodules.sources.base import Source, SourceReport
from ...foreign import Count, Finite, ForeignDataError, Message, Text, read, read_json
from ...rewards.canonical import Reference, normalize_answer, references_of
from ...rewards.child_environment import child_environment
from ...rewards.child_process import PATIENCE, ChildProcess
from ...rewards.extraction import extract_answer
from ...rewards.workers import BackgroundVerifier, WorkerPool
from ...types import QuestionGroup, Score
from .child_lines import complete_line

PROGRAM = Path(__file__).with_name("verifiers_program.py")
REMEDY = "Correct the environment's package, or set data.environment to another."


def interpreter(python: str | None) -> str:
    """Return the path of the interpreter `python`; None means the current interpreter."""
    return str(Path(python).expanduser()) if python else sys.executable


class TaskLine(Message):
    """Line in the output of `verifiers_program`: a task, the reason for a refusal, or the mark of the end."""

    question: Text | None = None
    """Text of the question."""
    data: Text | None = None
    """Data of the task, as JSON."""
    refused: Text | None = None
    """Reason why the environment can't be used for training."""
    end: Count | None = None
    """Number of tasks before this line."""


class TaskData(Message):
    """Data of a task: the fields that this package reads. The environment's rewards read all fields."""

    idx: Annotated[int, Field(ge=0, lt=10**9)]
    """Position of the task in the taskset."""
    id: Text | int | None = None
    """Id of the task."""
    name: Text | None = None
    """Name of the task."""


def read_line(content: bytes, source: str) -> TaskLine:
    """Read a line of the output of `verifiers_program`.

    Raises:
        ForeignDataError: if the line is neither a task nor a refusal nor the end.
    """
    line = read_json(TaskLine, content, source=source, remedy=REMEDY)
    given = {name for name in TaskLine.model_fields if getattr(line, name) is not None}
    if given not in ({"question", "data"}, {"refused"}, {"end"}):
        raise ForeignDataError(
            f"Expected {source} to have question and data, or refused, or end, but got {sorted(given)}. {REMEDY}"
        )
    return line


def read_data(text: str, source: str) -> TaskData:
    """Read the data of a task.

    Raises:
        ForeignDataError: if the text is not the data of a task.
    """
    return read_json(TaskData, text, source=source, remedy=REMEDY)


def taskset(environment: str, options: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the environment variable that passes the taskset and its options to `verifiers_program`."""
    return {"TAGRPO_TASKSET": json.dumps({"environment": environment, "options": dict(options or {})})}


def check_seconds(load_seconds: float) -> float:
    """Check that `load_seconds` is a positive number of seconds, and return it.

    Raises:
        ValueError: if `load_seconds` is not positive.
    """
    if not load_seconds > 0:
        raise ValueError(f"Expected data.load_seconds to be greater than 0, but got {load_seconds}.")
    return load_seconds


class VerifiersSource(Source):
    """Source of an environment's tasks. A reference answer is the task's data as JSON, for the rewards.

    If a task has a system prompt, it precedes the question. `metadata` has `environment`, and the task's `id`
    and `name`.

    Args:
        environment: Installed taskset.
        start: Index of the first task.
        size: Number of tasks; the report warns if there are fewer.
        options: Settings of the taskset.
        python: Interpreter in which the taskset is installed; None is the current interpreter.
        load_seconds: Time limit for loading the tasks, in seconds.
        variables: Names of environment variables to pass on, such as `HF_HOME`, besides those of
            `child_environment`.

    Raises:
        ValueError: when loading, if the environment is not installed, is not single-turn, or has no task.
        ForeignDataError: when loading, if a task is malformed, or if loading takes too long.
    """

    def __init__(
        self,
        environment: str,
        start: int = 0,
        size: int = 512,
        options: Mapping[str, Any] | None = None,
        python: str | None = None,
        load_seconds: float = 600.0,
        variables: Sequence[str] = (),
    ) -> None:
        self.load_seconds, self.variables = check_seconds(load_seconds), tuple(variables)
        self.environment, self.start, self.size = environment, start, size
        self.options, self.python = dict(options or {}), interpreter(python)

    def load(self) -> list[QuestionGroup]:
        """Load the tasks in a separate process."""
        lines = self._lines()
        if lines and lines[0].refused is not None:
            raise ValueError(
                "Expected data.environment to be a single-turn taskset of verifiers, but got "
                f"{self.environment!r}: {lines[0].refused}."
            )
        groups: dict[int, QuestionGroup] = {}
        for number, line in enumerate(lines):
            group, idx = self._group(line, number)
            if idx in groups:
                raise ForeignDataError(
                    f"Expected each task of {self.environment!r} to have an idx of its own, but task "
                    f"{number} has {idx}, as an earlier one. {REMEDY}"
                )
            groups[idx] = group
        if not groups:
            raise ValueError(
                f"Expected tasks of {self.environment} from {self.start} on, but there are none."
            )
        fewer = [f"Expected {self.size} tasks, but found {len(groups)}"] * (len(groups) < self.size)
        self.report = SourceReport(origin=f"verifiers, {self.environment}", read=len(groups), warnings=fewer)
        return list(groups.values())

    def _lines(self) -> list[TaskLine]:
        """Run `verifiers_program`; return the lines of its output, without the line that marks the end."""
        command = [self.python, "-P", str(PROGRAM), str(self.start), str(self.size)]
        surroundings = {**child_environment(self.variables), **taskset(self.environment, self.options)}
        try:
            child = ChildProcess(command, surroundings, f"the taskset {self.environment!r}")
        except OSError as error:
            raise ValueError(
                f"Expected data.python to be an interpreter, but got {self.python}: {error}."
            ) from error
        try:
            lines = self._read(child.output)
            if lines is None:
                code = child.end(PATIENCE)
                raise ValueError(
                    f"Expected {self.python} to load the tasks of {self.environment} with {self.options}, but "
                    f"it failed with exit code {code} before its last line; see its error above. If the "
                    "package verifiers is missing there, install it and the environment's package into a "
                    "Python of its own, and set data.python to that; docs/data.md has the commands."
                )
            return lines
        finally:  # the tasks are complete, or will never be
            child.end()

    def _read(self, reading: int) -> list[TaskLine] | None:
        """Read the lines before the one that marks the end; return None if the mark of the end is missing."""
        buffer, lines, deadline = bytearray(), list[TaskLine](), time.monotonic() + self.load_seconds
        expected = f"Expected {self.python} to load the tasks of {self.environment} with {self.options}"
        while True:
            source = f"line {len(lines)} of the taskset {self.environment!r}"
            try:
                content = complete_line(reading, buffer, deadline, source, REMEDY)
            except TimeoutError:
                raise ForeignDataError(
                    f"{expected} within {self.load_seconds:g} s, but got {len(lines)}. Raise "
                    "data.load_seconds, or load its data into its cache beforehand. It has no terminal to "
                    "ask."
                ) from None
            if content is None:
                return None
            line = read_line(content, source)
            if line.end is not None:
                if line.end != len(lines):
                    raise ForeignDataError(
                        f"Expected {line.end} tasks before {source}, but got {len(lines)}. {REMEDY}"
                    )
                return lines
            lines.append(line)
            if line.refused is not None:
                return lines
            if len(lines) > self.size:
                raise ForeignDataError(f"Expected {self.size} tasks at most, but got {source}. {REMEDY}")

    def _group(self, line: TaskLine, number: int) -> tuple[QuestionGroup, int]:
        """Convert a task to a question, and return the question with the task's idx."""
        assert line.question is not None
        assert line.data is not None
        data = read_data(line.data, f"task {number} of the taskset {self.environment!r}")
        facts = {"environment": self.environment, "id": data.id, "name": data.name}
        return QuestionGroup(
            f"{self.environment}-{data.idx:05d}", line.question, (), (line.data,), facts
        ), data.idx


class VerifiersReward(BackgroundVerifier):
    """Verifier that accepts a response if the weighted sum of the environment's rewards reaches `threshold`.

    Worker processes of the environment's Python compute the rewards, with limits for each response. A
    response that exceeds a limit counts as wrong, with the reason in `Score.failure`. Rewards read whole
    responses, including thoughts, because environments have their own parsers. `Score.answer` is the result
    of `extract_answer`.

    Args:
        environment: Name of the environment, the same as in the source.
        options: Options of the environment, the same as in the source.
        python: Python interpreter in which the environment is installed, the same as in the source.
        threshold: Smallest sum of rewards of a correct response. The policy learns from verdicts alone.
        workers: Number of scoring processes.
        cpu_seconds: CPU time limit per response.
        memory_bytes: Memory limit for scoring one response.
        load_seconds: Time limit for loading the environment in each worker, in seconds.
        variables: Names of environment variables to pass to the workers, the same as in the source.

    Raises:
        ForeignDataError: when waiting for scores, if a reward is not a finite number.
        RuntimeError: when waiting for scores, if a worker can't load the environment within `load_seconds`.
    """

    reads_response = True

    def __init__(
        self,
        environment: str,
        options: Mapping[str, Any] | None = None,
        python: str | None = None,
        threshold: float = 1.0,
        workers: int = 2,
        cpu_seconds: float = 5.0,
        memory_bytes: int = 1 << 30,
        load_seconds: float = 600.0,
        variables: Sequence[str] = (),
    ) -> None:
        self.environment, self.threshold = environment, threshold
        self._pool = WorkerPool(
            PROGRAM,
            workers,
            cpu_seconds,
            memory_bytes,
            python=interpreter(python),
            variables=taskset(environment, options),
            inherited=variables,
            start_seconds=check_seconds(load_seconds),
            source=f"the environment {environment!r}",
            remedy=f"{REMEDY} Time limits are data.load_seconds and reward.cpu_seconds.",
        )

    def score_async(
        self, responses: Sequence[str], references: Sequence[Reference]
    ) -> Callable[[], list[Score]]:
        """Start scoring; return a function that waits for the scores."""
        jobs = []
        for response, reference in zip(responses, references, strict=True):
            jobs.append((self._data(reference), response))
        wait = self._pool.submit(jobs)

        def scores() -> list[Score]:
            found = []
            for response, outcome in zip(responses, wait(), strict=True):
                answer = extract_answer(response)
                right = outcome.failure is None and self._reward(outcome.value) >= self.threshold
                found.append(
                    Score(right, answer if answer is None else normalize_answer(answer), outcome.failure)
                )
            return found

        return scores

    def check_reference(self, reference: Reference) -> None:
        """Check that a reference is the data of a task.

        Raises:
            ForeignDataError: if the reference is not the data of a task.
        """
        self._data(reference)

    def _data(self, reference: Reference) -> dict[str, Any]:
        """Return the data of a task from its reference answer."""
        source = f"the reference answer of a task of {self.environment!r}"
        return read_json(dict[str, Any], references_of(reference)[0], source=source, remedy=REMEDY)

    def _reward(self, value: object) -> float:
        """Return the reward of a response.

        Raises:
            ForeignDataError: if the reward is not a finite number.
        """
        return read(
            Finite, value, source=f"the reward of the environment {self.environment!r}", remedy=REMEDY
        )

    def close(self) -> None:
        """End the workers; the next call starts new workers."""
        self._pool.close()
