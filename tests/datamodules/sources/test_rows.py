"""Which questions lie within ranges of their metadata, from both kinds of files."""

from __future__ import annotations

import json

import pytest

from tagrpo.datamodules.sources.hub import HubSource
from tagrpo.datamodules.sources.jsonl import JsonLinesSource

LEVELS = ["Level 1", "Level 3", "Level 5", "Level ?", "Level 4", "Level 2"]


def written(path, **columns):
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.filterwarnings("ignore:another version")
def test_levels_3_to_5_of_math_are_three_levels(tmp_path):
    solutions = [rf"It is $\boxed{{{i}}}$." for i in range(6)]
    written(tmp_path / "math_train.jsonl", problem=[f"q{i}?" for i in range(6)], level=LEVELS, solution=solutions)
    source = HubSource("math_train", path=tmp_path, within={"level": [3, 5]})
    assert [group.metadata["level"] for group in source.load()] == ["Level 3", "Level 5", "Level 4"]
    assert source.report.excluded == {"outside_level": ["math_train-0", "math_train-3", "math_train-5"]}
    assert len(HubSource("math_train", path=tmp_path).load()) == 6


def test_a_stage_of_a_curriculum_is_a_range_of_success_rates(tmp_path):
    rates, levels = [0, 0.75, 0.751, 1, 1e-05], [3, 3, 3, 3, 1]
    path = written(tmp_path / "a.jsonl", question=list("abcde"), answer=[1] * 5, success_rate=rates, level=levels)
    source = JsonLinesSource(path, within={"success_rate": [0, 0.75], "level": [2, 5]})
    assert [group.question for group in source.load()] == ["a", "b"]
    assert source.report.excluded == {"outside_success_rate": ["a-3", "a-4"], "outside_level": ["a-5"]}
    assert source.report.read == 5


def test_questions_without_the_field_are_refused_by_name(tmp_path):
    path = written(tmp_path / "a.jsonl", question=["a", "b"], answer=[1, 2], level=["Level 3", None], x=["x", "y"])
    with pytest.raises(ValueError, match=r"a\.jsonl: expected `level` of every question.*but a-2 has level, x"):
        JsonLinesSource(path, within={"level": [3, 5]}).load()
    with pytest.raises(ValueError, match=r"expected `difficulty` .*Take a file that has it"):
        JsonLinesSource(path, within={"difficulty": [3, 5]}).load()


@pytest.mark.parametrize("bounds", [[3], [5, 3], [1, 2, 3]])
def test_what_is_no_range_is_refused_before_anything_is_read(tmp_path, bounds):
    path = written(tmp_path / "a.jsonl", question=["a"], answer=[1])
    for make in (lambda: JsonLinesSource(path, within={"level": bounds}),
                 lambda: HubSource("math_train", within={"level": bounds})):  # fmt: skip
        with pytest.raises(ValueError, match=r"within\.level` to be \[smallest, largest\]"):
            make()
