"""The page on reasoning-gym says what the code supports, and its commands are those that the tests of pages read."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from tagrpo.lab.tasks.reasoning_gym import TASKS, verifier
from tests.loading import script
from tests.settings.test_overrides import lines_of_code, refusal, runs_of

pytestmark = pytest.mark.pages

ROOT = Path(__file__).parents[1]
RATES = ROOT / "studies" / "smollm2" / "tasks.jsonl"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page that the script writes."""
    path = tmp_path_factory.mktemp("page") / "reasoning_gym.md"
    script("reasoning_gym_page").write(path)
    return path.read_text(encoding="utf-8")


def test_its_commands_compose(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(script("reasoning_gym_page").TEXT, encoding="utf-8")
    runs = [run for line in lines_of_code(path) for run in runs_of(line)]
    assert len(runs) == 3
    assert [refusal(*run) for run in runs] == [None] * 3


def test_the_table_is_what_the_code_supports(page):
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|", page, re.MULTILINE)
    assert [row[0] for row in rows] == list(TASKS)
    for task, form, remark in rows:
        if form == "not supported":
            with pytest.raises(ValueError, match=re.escape(remark)):
                verifier(task)
        else:
            assert form == f"`{verifier(task).form}`"
    supported = sum(form != "not supported" for _, form, _ in rows)
    assert f"{supported} of {len(TASKS)} tasks are supported" in page


def test_the_rates_are_those_of_the_table_of_runs(page):
    found = [json.loads(line) for line in RATES.read_text(encoding="utf-8").splitlines()]
    for row in found:
        rate = f"{100 * row['rate']:.1f}"
        (line,) = re.findall(rf"^\| `{row['task']}` \|.*", page, re.MULTILINE)
        assert (f"| **{rate}** |" if 0.02 <= row["rate"] <= 0.6 else f"| {rate} |") in line
    learnable = sum(row["worth"] for row in found)
    study = (ROOT / "studies" / "smollm2" / "README.md").read_text(encoding="utf-8")
    assert f"All {len(found)} can be trained on. {learnable} begin between 2 and 60 % correct" in study


@pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="needs reasoning-gym")
def test_every_task_but_mixtures_has_a_question(page):
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", page, re.MULTILINE)
    assert [task for task, question in rows if not question.strip()] == ["composite"]


def test_without_the_package_the_table_has_no_questions(monkeypatch):
    module = script("reasoning_gym_page")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert module.example("gcd") == ""
    assert f"of {len(TASKS)} tasks are supported" in module.section()
