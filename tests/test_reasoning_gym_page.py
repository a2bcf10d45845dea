"""docs/reasoning_gym.md says what the code supports, and its questions are those of the package."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tagrpo.lab.tasks.reasoning_gym import TASKS, verifier

pytestmark = pytest.mark.pages

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "reasoning_gym_page.py"
PAGE = (ROOT / "docs" / "reasoning_gym.md").read_text()
PRINT = f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import reasoning_gym_page as page; print(page.section())"


def test_the_table_is_what_the_code_supports():
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|", PAGE, re.MULTILINE)
    assert [row[0] for row in rows] == list(TASKS)
    for task, form, remark in rows:
        if form == "not supported":
            with pytest.raises(ValueError, match=re.escape(remark)):
                verifier(task)
        else:
            assert form == f"`{verifier(task).form}`"
    assert (
        f"{sum(form != 'not supported' for _, form, _ in rows)} of {len(TASKS)} tasks are supported" in PAGE
    )


@pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="needs reasoning-gym")
def test_the_page_is_what_its_script_writes():
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-W", "ignore", "-c", PRINT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert f"<!-- begin tasks -->\n{done.stdout.rstrip()}\n<!-- end tasks -->" in PAGE
