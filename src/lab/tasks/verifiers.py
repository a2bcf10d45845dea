"""Single-turn environments of the package verifiers (https://pypi.org/project/verifiers), scored by their own rewards.

The package needs another version of openai than this one, and an environment is a stranger's code: both live in a
Python of their own (`data.python`), of which processes with limits load tasks and score responses. Nothing of an
environment runs in this process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...datamodules.sources.base import Source, SourceReport
from ...rewards.canonical import Reference, normalize_answer, references_of
from ...rewards.extraction import extract_answer
from ...rewards.workers import BackgroundVerifier, WorkerPool
from ...types import QuestionGroup, Score

PROGRAM = Path(__file__).with_name("verifiers_program.py")


def interpreter(python: str | None) -> str:
    """The path of `python`; of None, that of this process."""
    return str(Path(python).expanduser()) if python else sys.executable


def variables(environment: str, options: Mapping[str, Any] | None) -> dict[str, str]:
    """Environment variables of the program."""
    return {"TAGRPO_TASKSET": json.dumps({"environment": environment, "options": dict(options or {})})}


class VerifiersSource(Source):
    """Tasks of an environment as questions. The reference answer of each is its data as JSON, which its rewards read.

    A system prompt stands before the question. `metadata` holds `environment` and the task's own `id` and `name`.

    Args:
        environment: A taskset that is installed.
        start: Place of the first task.
        size: Number of tasks; the report warns where there are fewer.
        options: Settings of the taskset.
        python: The interpreter in which it is installed; None is this one.

    Raises:
        ValueError: on loading, the environment is not installed or not single-turn, or there is no task.
    """

    def __init__(
        self,
        environment: str,
        start: int = 0,
        size: int = 512,
        options: Mapping[str, Any] | None = None,
        python: str | None = None,
    ) -> None:
        self.environment, self.start, self.size = environment, start, size
        self.options, self.python = dict(options or {}), interpreter(python)

    def load(self) -> list[QuestionGroup]:
        """Load the tasks, in a process of their own."""
        command = [self.python, "-P", str(PROGRAM), str(self.start), str(self.size)]
        surroundings = {**os.environ, **variables(self.environment, self.options)}
        ended = subprocess.run(command, env=surroundings, stdout=subprocess.PIPE, text=True, check=False)
        rows = [json.loads(line) for line in ended.stdout.splitlines()]
        if rows and isinstance(rows[0], dict):
            raise ValueError(
                f"Expected data.environment to be a single-turn taskset of verifiers, but got {self.environment!r}: "
                f"{rows[0]['refused']}."
            )
        if ended.returncode:
            raise ValueError(
                f"Expected {self.python} to load the tasks of {self.environment} with {self.options}, but it failed; "
                "see its error above. Where the package verifiers is missing there, install it and the environment's "
                "package into a Python of its own, and set data.python to that; docs/data.md has the commands."
            )
        if not rows:
            raise ValueError(f"Expected tasks of {self.environment} from {self.start} on, but there are none.")
        fewer = [f"Expected {self.size} tasks, but found {len(rows)}"] * (len(rows) < self.size)
        self.report = SourceReport(origin=f"verifiers, {self.environment}", read=len(rows), warnings=fewer)
        return [self._group(*row) for row in rows]

    def _group(self, question: str, data: Mapping[str, Any]) -> QuestionGroup:
        facts = {"environment": self.environment, "id": data.get("id"), "name": data.get("name")}
        return QuestionGroup(f"{self.environment}-{data['idx']:05d}", question, (), (json.dumps(data),), facts)


class VerifiersReward(BackgroundVerifier):
    """Correct where the environment's rewards, weighted and summed, reach `threshold`.

    They are computed by worker processes of the environment's own Python, each response within limits; one that exceeds
    them counts as wrong, and `Score.failure` says why. They get whole responses, thoughts included: environments have
    parsers of their own. The answer is what `extract_answer` finds.

    Args:
        environment: As that of the source.
        options: As those of the source.
        python: As that of the source.
        threshold: Least reward of a correct response. What it earns below that is not learned from.
        workers: Processes that score.
        cpu_seconds: CPU time per response.
        memory_bytes: Memory that scoring one response may take.
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
    ) -> None:
        self.threshold = threshold
        limits, surroundings = (workers, cpu_seconds, memory_bytes), variables(environment, options)
        self._pool = WorkerPool(PROGRAM, *limits, python=interpreter(python), variables=surroundings)

    def score_async(self, responses: Sequence[str], references: Sequence[Reference]) -> Callable[[], list[Score]]:
        """Start scoring; returns a function that waits for the scores."""
        jobs = [
            (json.loads(references_of(reference)[0]), response)
            for response, reference in zip(responses, references, strict=True)
        ]
        wait = self._pool.submit(jobs)

        def scores() -> list[Score]:
            found = []
            for response, outcome in zip(responses, wait(), strict=True):
                answer = extract_answer(response)
                right = outcome.value is not None and outcome.value >= self.threshold
                found.append(Score(right, answer if answer is None else normalize_answer(answer), outcome.failure))
            return found

        return scores

    def close(self) -> None:
        """End the workers; the next call starts new ones."""
        self._pool.close()
