"""Print a page on the tasks of reasoning-gym: how each is judged or why not, a rate of success, and a question.

    python scripts/reasoning_gym_page.py

The rates are those of SmolLM2-135M in `studies/smollm2/tasks.jsonl`, as `scripts/task_rates.py` has written them.
Without the package reasoning-gym the page has no questions. The site of the documentation has the page too.
"""

import json
import os
import random
import subprocess
import sys
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

from tagrpo.datamodules.sources.base import plain
from tagrpo.files import write_text
from tagrpo.lab.tasks.reasoning_gym import TASKS

ROOT = Path(__file__).resolve().parents[1]
RATES = ROOT / "studies" / "smollm2" / "tasks.jsonl"
SHOWN = (90, 50)
"""Characters of a question that are shown, of its beginning and of its end."""
TEXT = """# Tasks of reasoning-gym

[reasoning-gym](https://pypi.org/project/reasoning-gym) generates questions of a hundred kinds, each with
settings for its difficulty. Install it with `pip install 'tagrpo[reasoning-gym]'`, then train on or evaluate
any supported task of the table:

```bash
tagrpo-train experiment=grpo data=reasoning_gym data.task=gcd '+data.options={max_value: 20}'
tagrpo-train experiment=grpo data=reasoning_gym data.task=chain_sum model=smollm2_135m template=chat \\
    template.instruction='"Answer with a number only."'
tagrpo-eval data=reasoning_gym data.task=chain_sum model=smollm2_135m template=chat
python scripts/task_rates.py rates.jsonl model=smollm2_135m template=chat    # which tasks can a model learn?
```

- **Options.** `data.options` has settings of the generator, under the names that its configuration class has.
- **Questions.** `data.train.size` questions are generated to train on (512), `data.evaluation.test.size` to
  test (64). They have no rephrasings. `seed` chooses the training questions; the test questions are the same
  for every seed. If a generator has fewer different questions, the run warns and uses those.
- **Split.** Questions are split by a hash of their words and symbols, whatever their order, so that no
  question is in both parts: `gcd` of 12 and 18 is not tested if 18 and 12 are trained on. `data.json` of a
  run lists test questions of which at least half occurs in one training question.
- **Verdicts.** tagrpo judges answers itself, because scorers of the package evaluate a model's text as Python
  in several tasks. The answer is what a box, `####` or "answer is" marks. Without a mark it is the last
  number, word or line, depending on the form of the answer. Tasks with many right answers are not supported.

Rates are those of SmolLM2-135M on 64 responses at the start of one training iteration; bold rates, from 2 to
60 %, leave something to learn. Nine tasks had only 16 responses (`studies/smollm2/README.md`). Questions are
of version 0.1.25; long questions are cut.

"""
"""What stands above the table."""


def example(task: str) -> str:
    """Generate the first question of a task at seed 0, cut; empty for a mixture of others and without the package."""
    if task == "composite" or find_spec("reasoning_gym") is None:
        return ""
    from reasoning_gym.factory import create_dataset

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
    """Return the table."""
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


def write(path: Path) -> None:
    """Write the page to `path`, in a process with a fixed hash seed: some generators depend on the order of sets."""
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-W", "ignore", __file__]
    page = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    write_text(path, page)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    print(f"{TEXT}{section()}")
