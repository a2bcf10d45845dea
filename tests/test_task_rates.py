"""scripts/task_rates.py measures each supported task once, and goes on where it was interrupted."""

from __future__ import annotations

import json
import sys

import pytest

from tagrpo.starter import starter_path
from tests.loading import script

pytestmark = pytest.mark.pages

pytest.importorskip("reasoning_gym")


@pytest.fixture
def rates(monkeypatch):
    module = script("task_rates")
    chosen = {
        name: facts for name, facts in module.TASKS.items() if name in ("countdown", "gcd", "spell_backward")
    }
    monkeypatch.setattr(module, "TASKS", chosen)
    return module


def rows(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("training", [True, False])
def test_each_supported_task_has_a_line_and_is_measured_once(rates, monkeypatch, tmp_path, training):
    file = tmp_path / "rates.jsonl"
    options = ["data.train.size=8", "data.samples_per_prompt=2"] if training else []
    options += ["data.evaluation.test.size=3", "data.evaluation_samples=2", f"model.path={starter_path()}"]
    monkeypatch.setattr(sys, "argv", ["task_rates.py", str(file), *options, *["--train"] * training])
    rates.main()
    found = rows(file)
    assert [row["task"] for row in found] == ["gcd", "spell_backward"]
    for row in found:
        assert row["responses"] == (16 if training else 6)
        assert 0 <= row["rate"] <= row["solved"] <= 1
        assert row["worth"] == (0.02 <= row["rate"] <= 0.6)
    file.write_text(json.dumps(found[0]) + "\n")
    monkeypatch.setattr(rates, "measure", lambda task, *_: {"rate": f"new {task}"})
    rates.main()
    assert rows(file)[0] == found[0]
    assert rows(file)[1]["rate"] == "new spell_backward"


def test_the_instruction_of_a_chat_template_asks_for_the_form(rates, monkeypatch, tmp_path):
    asked = []

    def build(cfg):
        asked.append((cfg.template.name, cfg.template.instruction, cfg.data.train))
        raise ValueError("enough")

    monkeypatch.setattr(rates, "build", build)
    chat = ["model=pretrained", "model.path=folder", "template=boxed", "template.name=chat"]
    monkeypatch.setattr(sys, "argv", ["task_rates.py", str(tmp_path / "rates.jsonl"), *chat])
    rates.main()
    assert asked == [
        ("chat", "Answer with a number only.", None),
        ("chat", "Answer with one word only.", None),
    ]
    assert [row["error"] for row in rows(tmp_path / "rates.jsonl")] == ["enough", "enough"]
