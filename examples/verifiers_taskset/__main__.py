"""Writes questions of an embedded task as lines of JSON, for the taskset `tagrpo_v1.py` beside it.

python examples/verifiers_taskset countdown test_id 64 > countdown.jsonl
"""

from __future__ import annotations

import json
import sys

from tagrpo.lab.tasks.arithmetic import ArithmeticSource
from tagrpo.lab.tasks.countdown import CountdownReward, CountdownSource
from tagrpo.lab.tasks.shortest_path import ShortestPathReward, ShortestPathSource

TASKS = {
    "arithmetic": (ArithmeticSource, None),
    "countdown": (CountdownSource, CountdownReward()),
    "shortest_path": (ShortestPathSource, ShortestPathReward()),
}
"""Task → its questions, and the verifier that can list all correct responses, if there is one."""


def main(task: str, split: str = "test_id", size: str = "64") -> None:
    """Print the first `size` questions of a split."""
    source, verifier = TASKS[task]
    for group in source(split=split, size=int(size)).load():
        row = {
            "id": group.id,
            "question": group.question,
            "rephrasings": group.rephrasings,
            "answers": group.answer,
            "responses": verifier.correct_responses(group.answer) if verifier else [],
        }
        print(json.dumps(row))


if __name__ == "__main__":
    main(*sys.argv[1:])
