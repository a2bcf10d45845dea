"""Several sources as one."""

from __future__ import annotations

import pytest

from tagrpo.datamodules.sources.concatenated import ConcatenatedSource
from tagrpo.datamodules.sources.table import TableSource
from tagrpo.lab.tasks.arithmetic import ArithmeticSource


def test_questions_follow_each_other_and_reports_are_joined(tmp_path):
    path = tmp_path / "q.jsonl"
    rows = [
        '{"id": "a", "question": "x", "answer": 1, "level": 1}',
        '{"id": "b", "question": "y", "answer": 2, "level": 2}',
    ]
    path.write_text("\n".join(rows))
    file = TableSource(path, within={"level": [0, 1]})
    source = ConcatenatedSource({"file": file, "task": ArithmeticSource(size=3)})
    assert [group.id for group in source.load()] == [
        "a",
        *(group.id for group in ArithmeticSource(size=3).load()),
    ]
    assert source.report.read == 5
    assert source.report.excluded == {"outside_level": ["b"]}
    assert source.report.notes == ["file: gives 1 questions", "task: gives 3 questions"]
    assert source.report.origin == f"{path} + task"


def test_ids_that_two_sources_share_are_refused():
    with pytest.raises(ValueError, match="different ids in `two`"):
        ConcatenatedSource({"one": ArithmeticSource(size=2), "two": ArithmeticSource(size=2)}).load()
    with pytest.raises(ValueError, match="`sources`"):
        ConcatenatedSource({})
