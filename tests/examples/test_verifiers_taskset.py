"""The embedded tasks as a taskset of verifiers: its verdicts are ours."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from examples.verifiers_taskset.__main__ import TASKS, main
from tagrpo.lab.tasks.verifiers import VerifiersReward, VerifiersSource
from tagrpo.rewards import FinalAnswerReward
from tests.lab.tasks.test_verifiers import PYTHON, needs_verifiers

pytestmark = pytest.mark.pages

FOLDER = Path(__file__).parents[2] / "examples" / "verifiers_taskset"
WRONG = ["", "#### ", "#### none", "1 + 2", "right, right", "#### 7\n#### 8"]


@pytest.mark.parametrize("task", TASKS)
def test_lines_have_the_questions_and_all_correct_responses(task, capsys):
    main(task, "test_id", "3")
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    source, verifier = TASKS[task]
    groups = source(split="test_id", size=3).load()
    assert [(row["question"], tuple(row["answers"])) for row in rows] == [
        (g.question, g.answer) for g in groups
    ]
    for row in rows:
        assert all(verifier(response, row["answers"]).correct for response in row["responses"])
        assert bool(row["responses"]) == (verifier is not None)


@needs_verifiers
@pytest.mark.parametrize("task", TASKS)
def test_verdicts_of_the_taskset_are_those_of_the_task(task, tmp_path, capsys, monkeypatch):
    main(task, "test_id", "3")
    file = tmp_path / "questions.jsonl"
    file.write_text(capsys.readouterr().out)
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))
    options = {"questions": str(file)}
    groups = VerifiersSource("tagrpo-v1", options=options, python=PYTHON, size=3).load()
    own = TASKS[task][0](split="test_id", size=3).load()
    assert [group.question for group in groups] == [group.question for group in own]
    verifier = TASKS[task][1] or FinalAnswerReward()
    responses, answers, references = [], [], []
    for theirs, ours in zip(groups, own, strict=True):
        right = [f"so #### {ours.answer[0]}", f"#### 0\n#### {ours.answer[0]}\nand on", *ours.answer]
        given = [*WRONG, *right]
        responses += given
        answers += [theirs.answer] * len(given)
        references += [ours.answer] * len(given)
    with closing(VerifiersReward("tagrpo-v1", options, PYTHON, workers=1)) as reward:
        found = [score.correct for score in reward.score_batch(responses, answers)]
    assert found == [verifier(*pair).correct for pair in zip(responses, references, strict=True)]
    assert any(found)
