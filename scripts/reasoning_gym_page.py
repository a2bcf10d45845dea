"""Write the table of docs/reasoning_gym.md: each task, how it is judged or why not, and a question.

python scripts/reasoning_gym_page.py
"""

from __future__ import annotations

import os
import random
import re
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from tagrpo.datamodules.sources.base import plain
from tagrpo.lab.tasks.reasoning_gym import TASKS
from tagrpo.runs.files import write_text

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reasoning_gym.md"
SECTION = re.compile(r"(?<=<!-- tasks -->\n).*(?=<!-- end of tasks -->)", re.DOTALL)
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


def section() -> str:
    """The table."""
    rows = [f"{sum('form' in facts for facts in TASKS.values())} of {len(TASKS)} tasks are supported.", ""]
    rows += ["| task | form of the answer | remark | a question |", "|---|---|---|---|"]
    for task, facts in TASKS.items():
        form = f"`{facts['form']}`" if "form" in facts else "not supported"
        digits = f"{facts['digits']} significant digits" if "digits" in facts else ""
        remark = "; ".join(filter(None, (digits, facts.get("note"), facts.get("unsupported"))))
        rows.append(f"| `{task}` | {form} | {remark} | {example(task)} |")
    return "\n".join([*rows, ""])


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # some generators depend on the order of sets
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    table = section()
    write_text(PAGE, SECTION.sub(lambda _: table, PAGE.read_text(encoding="utf-8")))
