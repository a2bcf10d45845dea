from __future__ import annotations

import json

import pytest

from tagrpo.rephrasing.audit import (
    by_check,
    coverage,
    listing,
    read_reviewed,
    recheck,
    sample_groups,
)
from tagrpo.rephrasing.candidates import Candidate, Reviewed, Verdict, write_reviewed
from tagrpo.rephrasing.checks import TEXT_CHECKS
from tagrpo.types import QuestionGroup

TEXTS = ["Add 3 and 4.", "Add 3 and 5.", "What is 3 + 4?"]  # fine; a wrong number; a copy


def reviewed(count=1):
    made = {"model": "m", "instruction": "box1", "time": "2026-01-01T00:00:00+00:00", "seed": 1}
    return [
        Reviewed(
            QuestionGroup(f"q{i}", "What is 3 + 4?", (), ("7",), {"level": 1}),
            [Candidate(text, made) for text in TEXTS],
        )
        for i in range(count)
    ]


def test_candidates_are_counted_by_check_and_by_question():
    items = reviewed()
    recheck(items, TEXT_CHECKS)
    verdicts = [[v.check for v in candidate.verdicts if not v.passed] for candidate in items[0].candidates]
    assert verdicts == [[], ["numbers_kept"], ["not_identical"]]
    assert list(by_check(items).loc["numbers_kept"]) == [2, 1, 0, 1]
    assert coverage(items) == {1: 1}


def test_what_is_written_is_what_is_read_back(tmp_path):
    items = reviewed(2)
    recheck(items, TEXT_CHECKS)
    items[1].shortfall = "lacks 2"
    write_reviewed(tmp_path / "a.jsonl", items)
    back = read_reviewed(tmp_path / "a.jsonl")
    assert [c.verdicts for c in back[0].candidates] == [c.verdicts for c in items[0].candidates]
    assert back[0].group == items[0].group
    assert back[1].shortfall == "lacks 2"
    write_reviewed(tmp_path / "b.jsonl", back)
    assert (tmp_path / "b.jsonl").read_text() == (tmp_path / "a.jsonl").read_text()


def test_a_new_check_of_the_text_keeps_what_models_said():
    items = reviewed()
    items[0].candidates[0].verdicts = [Verdict("judge", False, "no"), Verdict("numbers_kept", False, "old")]
    recheck(items, TEXT_CHECKS)
    verdicts = {verdict.check: verdict for verdict in items[0].candidates[0].verdicts}
    assert verdicts["judge"].passed is False
    assert verdicts["numbers_kept"].passed is True


def test_provenance_that_does_not_fit_the_rephrasings_is_an_error(tmp_path):
    row = {"id": "a", "question": "?", "answer": "1", "rephrasings": ["x", "y"], "provenance": [{}]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    with pytest.raises(ValueError, match="`provenance`"):
        read_reviewed(tmp_path / "a.jsonl")


def test_the_sample_is_a_random_one_of_questions_with_candidates_and_follows_the_seed():
    items = [*reviewed(30), Reviewed(QuestionGroup("empty", "?", (), ("1",)))]
    ids = [item.group.id for item in sample_groups(items, 5, seed=1)]
    assert ids == [item.group.id for item in sample_groups(items, 5, seed=1)]
    assert len(set(ids)) == 5
    drawn = {item.group.id for seed in range(60) for item in sample_groups(items, 5, seed)}
    assert drawn == {f"q{i}" for i in range(30)}
    assert len(sample_groups(items, 100, seed=0)) == 30


def test_the_listing_shows_each_candidate_once_and_no_text_of_a_model_becomes_markup():
    items = reviewed(2)
    items[0].candidates[0].text = "</pre><script>alert(1)</script> & $x<y$\n# A heading\n\n- of its own"
    recheck(items, TEXT_CHECKS)
    page = listing(items)
    assert page.count("### ") == 6
    assert "missing: 4; new: 5" in page
    assert [line for line in page.splitlines() if line and line[0] not in "# "] == []
    assert [line for line in page.splitlines() if line.startswith("# ")] == page.splitlines()[:1]
    assert "    # A heading\n    \n    - of its own\n" in page


def test_the_listing_shows_what_a_reader_could_not_see():
    items = reviewed()
    items[0].candidates[0].text = "Add\u200b 3 and\x1b[2J 4.\n\u202eNow."
    page = listing(items)
    assert "    Add\\u200b 3 and\\x1b[2J 4.\n    \\u202eNow.\n" in page
    assert all(line.isprintable() for line in page.splitlines())


def test_an_undecided_judge_accepts_nothing_in_a_file_of_before():
    items = reviewed()
    items[0].candidates[0].verdicts = [Verdict("judge", None, "no reply")]
    recheck(items, TEXT_CHECKS)
    assert items[0].kept() == []
    assert list(by_check(items).loc["judge"]) == [0, 0, 1, 0]
