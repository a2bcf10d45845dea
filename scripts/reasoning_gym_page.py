"""Write the table of docs/reasoning_gym.md: each task, how it is judged or why not, a rate of success, and a question.

    python scripts/reasoning_gym_page.py

The rates are those of SmolLM2-135M in `studies/smollm2_tasks.jsonl`, as `scripts/task_rates.py` has written them.
"""

import json
import os
import random
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from tagrpo.datamodules.sources.base import plain
from tagrpo.files import write_section
from tagrpo.lab.tasks.reasoning_gym import TASKS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reasoning_gym.md"
RATES = ROOT / "studies" / "smollm2_tasks.jsonl"
SHOWN = (90, 50)
"""Characters of a question that are shown, of its beginning and of its end."""


def example(task: str) -> str:
    """The first question of a task at seed 0, cut; empty for a mixture of others."""
    from reasoning_gym.factory import create_dataset

    if task == "composite":
        return ""
    random.seed(0)  # one task does not pass its seed on
    with redirect_stdout(StringIO()):
        question = plain(create_dataset(task, seed=0, size=1)[0]["question"]).replace("`", "'")
    short = question if len(question) <= sum(SHOWN) else f"{question[: SHOWN[0]]} … {question[-SHOWN[1] :]}"
    return f"`{short}`".replace("|", "\\|")


def rates() -> dict[str, str]:
    """Task → share of correct responses of SmolLM2-135M in percent, bold where there is something to learn from."""
    found = map(json.loads, RATES.read_text(encoding="utf-8").splitlines())
    percent = {row["task"]: (f"{100 * row['rate']:.1f}", row["worth"]) for row in found if "rate" in row}
    return {task: f"**{rate}**" if worth else rate for task, (rate, worth) in percent.items()}


def section() -> str:
    """The table."""
    measured = rates()
    rows = [f"{sum('form' in facts for facts in TASKS.values())} of {len(TASKS)} tasks are supported.", ""]
    rows += [
        "| task | form of the answer | remark | SmolLM2, % correct | a question |",
        "|---|---|---|---|---|",
    ]
    for task, facts in TASKS.items():
        form = f"`{facts['form']}`" if "form" in facts else "not supported"
        digits = f"{facts['digits']} significant digits" if "digits" in facts else ""
        remark = "; ".join(filter(None, (digits, facts.get("note"), facts.get("unsupported"))))
        rows.append(f"| `{task}` | {form} | {remark} | {measured.get(task, '–')} | {example(task)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # some generators depend on the order of sets
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    write_section(PAGE, "tasks", section())
