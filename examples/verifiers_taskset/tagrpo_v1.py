"""The embedded tasks of tagrpo as a taskset of the package verifiers (0.4), which needs nothing of tagrpo.

    python examples/verifiers_taskset countdown > countdown.jsonl         # where tagrpo is installed
    export PYTHONPATH=examples/verifiers_taskset                          # where verifiers is
    eval tagrpo-v1 --env.taskset.questions countdown.jsonl

Success is exact: `responses` lists every correct response, letter by letter; where it is empty, the number
after the last `####` decides.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import verifiers.v1 as vf


class QuestionData(vf.TaskData):
    """One question."""

    answers: list[str]
    """Reference answers, any of which is correct."""
    responses: list[str]
    """All correct responses; empty where they can't be listed."""
    rephrasings: list[str]
    """The same question in other words."""


class QuestionTask(vf.Task[QuestionData]):
    """One question, one response."""

    @vf.reward
    async def correct(self, task: QuestionData, trace: vf.Trace) -> float:
        """1 for a correct response, else 0."""
        if task.responses:
            return float(trace.last_reply in task.responses)
        _, found, tail = trace.last_reply.rpartition("####")
        return float(bool(found) and tail.strip().partition("\n")[0].strip() in task.answers)


class QuestionConfig(vf.TasksetConfig):
    """Settings of the taskset."""

    questions: Path = Path("questions.jsonl")
    """File that `python examples/verifiers_taskset` has written."""


class Questions(vf.Taskset[QuestionTask, QuestionConfig]):
    """The questions of one file."""

    def load(self) -> Iterator[QuestionTask]:
        """Read the file."""
        for line in self.config.questions.read_text().splitlines():
            row = json.loads(line)
            data = QuestionData(prompt=row.pop("question"), **row)
            yield QuestionTask(data, self.config.task)


__all__ = ["Questions"]
