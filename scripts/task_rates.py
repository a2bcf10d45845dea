"""Over all tasks of data=reasoning_gym: the success rate of a model, or one iteration of training.

    python scripts/task_rates.py rates.jsonl model=smollm2_135m template=chat
    python scripts/task_rates.py trained.jsonl --train                     # the embedded policy; proof that tasks work

Writes one line of JSON for each task: `rate` (share of correct responses), `unread` (share in which no answer was
found), `tokens` (mean length), `solved` (share of questions with a correct response), `worth` (whether the rate is
between 2 and 60 %, where there is something to learn), or `error`. The same command goes on where it was interrupted.
Other arguments are settings of tagrpo-eval or tagrpo-train: `data.evaluation.test.size=32` questions,
`data.evaluation_samples=8`, `rollout.sampling.max_new_tokens=64`. With a chosen template, its instruction asks for the
form of the answer, unless template.instruction is given.
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path
from statistics import fmean as mean
from tempfile import TemporaryDirectory
from typing import Any

from lightning.pytorch import Callback

from tagrpo.cli.train import train
from tagrpo.files import write_text
from tagrpo.lab.tasks.reasoning_gym import TASKS
from tagrpo.settings.config import build, compose_run
from tagrpo.study.evaluate import evaluate

ASKED = {"number": "a number", "numbers": "the numbers", "multiset": "the numbers", "word": "one word"}


class Responses(Callback):
    """Keeps the rollouts of all batches."""

    def __init__(self) -> None:
        self.batches: list[Any] = []

    def on_test_batch_end(self, *arguments: Any) -> None:
        """Lightning gives the trainer, the module, outputs, the batch, and numbers."""
        self.batches.append(arguments[3].rollouts)

    on_train_batch_end = on_test_batch_end


def measure(task: str, settings: list[str], training: bool, folder: str) -> dict[str, float | bool]:
    """What is written of one task."""
    mode = ["iterations=1", "trainer.limit_val_batches=0"] if training else ["data.train=null"]
    common = ["data=reasoning_gym", f"data.task={task}", "callbacks=[progress,pass_at_k]"]
    if any(setting.startswith("template=") for setting in settings):
        common.append(
            f"template.instruction=Answer with {ASKED.get(TASKS[task]['form'], 'the result')} only."
        )
    settings = [*mode, *common, "logger=csv", *settings]
    run, seen = build(compose_run(folder, settings, "train" if training else "evaluate")), Responses()
    run.trainer.callbacks.append(seen)  # type: ignore[attr-defined]
    try:
        (partial(train, test=False) if training else evaluate)(run.module, run.datamodule, run.trainer)
    finally:
        run.close()
    correct = [bool(verdict) for batch in seen.batches for verdict in batch.correct]
    answers = [answer for batch in seen.batches for answer in batch.answers]
    solved = [
        bool(batch.correct[batch.question == q].any())
        for batch in seen.batches
        for q in batch.question.unique()
    ]
    found = {"rate": mean(correct), "solved": mean(solved), "unread": answers.count(None) / len(answers)}
    tokens = mean(length for batch in seen.batches for length in batch.lengths.tolist())
    return {**found, "tokens": tokens, "responses": len(correct), "worth": 0.02 <= found["rate"] <= 0.6}


def main() -> None:
    """Measure what is missing in the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path)
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--train", action="store_true")
    options = parser.parse_intermixed_args()
    asked = {"train": options.train, "settings": options.settings}
    rows = (
        [json.loads(line) for line in options.output.read_text().splitlines()]
        if options.output.exists()
        else []
    )
    known = {
        row["task"] for row in rows if {name: row[name] for name in asked} == asked and "error" not in row
    }
    for task in (name for name, facts in TASKS.items() if "form" in facts and name not in known):
        row, start = {"task": task, **asked}, time.perf_counter()
        with TemporaryDirectory() as folder:
            try:
                row |= measure(task, options.settings, options.train, folder)
            except ValueError as error:  # all prompts too long, say
                row["error"] = str(error)
        rows.append({**row, "seconds": round(time.perf_counter() - start, 1)})
        write_text(options.output, "".join(json.dumps(row) + "\n" for row in rows))
        print({name: value for name, value in rows[-1].items() if name not in asked}, flush=True)


if __name__ == "__main__":
    main()
