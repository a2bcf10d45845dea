"""GRESO's chances against the rules of its authors' code."""

from __future__ import annotations

import pytest

from tagrpo.contrib.greso.curriculum import SkipUniform
from tagrpo.datamodules.memory import Record, Visit


def visited(*right):
    """A question with two responses to each of two phrasings, of which so many were right at each visit."""
    return Record(visits=[Visit((2, 2), (min(r, 2), max(r - 2, 0))) for r in right])


def by_the_authors(trace, p, easy):
    """1 − the skip probability of presampling_selector.py, for rates of visits in order."""
    if not easy and trace[-1] > 0.11:
        return 1.0
    count = 0
    for rate in reversed(trace):
        if rate < 0.98 if easy else rate > 0.11:
            break
        count += 1
    return max(p**count, 0.01)


@pytest.mark.parametrize(
    "right",
    [(4,), (0,), (2,), (4, 4, 4), (0, 0), (4, 0), (0, 4, 4), (4, 4, 2), (2, 0, 0, 0), (0,) * 9, (4,) * 64],
)
def test_questions_without_gradient_are_skipped_as_by_gresos_authors(right):
    curriculum, trace = SkipUniform(easy=0.5, hard=0.3), [r / 4 for r in right]
    # Both rules are asked in turn there; a question is skipped by at most one.
    expected = by_the_authors(trace, 0.5, easy=True) * by_the_authors(trace, 0.3, easy=False)
    assert curriculum.chance(visited(*right)) == pytest.approx(expected)


def test_the_chances_follow_the_shares_of_easy_and_hard_questions():
    curriculum = SkipUniform(easy=0.5, hard=0.5, target=0.75, step=0.1)  # aims at ¼ easy and ½ hard ones
    batch = [Visit((2,), (2,)), Visit((2,), (1,)), Visit((2,), (0,)), Visit((2,), (1,))]
    curriculum.observe(batch)
    assert curriculum.chances == pytest.approx({1.0: 0.4, 0.0: 0.6}), (
        "¼ are easy, which is enough; ¼ are hard"
    )
    for _ in range(9):
        curriculum.observe(batch)
    assert curriculum.chances == pytest.approx({1.0: 0.05, 0.0: 0.95}), "within their bounds"
    curriculum.observe([])
    assert curriculum.chances == pytest.approx({1.0: 0.05, 0.0: 0.95}), "nothing was seen"
    again = SkipUniform()
    again.load_state_dict(curriculum.state_dict())
    assert again.chances == curriculum.chances


def test_a_question_that_was_never_sampled_is_served():
    assert SkipUniform().chance(Record()) == 1.0


@pytest.mark.parametrize("options", [{"easy": 0.01}, {"target": 1.5}])
def test_impossible_options_are_refused(options):
    with pytest.raises(ValueError, match=rf"data\.curriculum.*{next(iter(options))}"):
        SkipUniform(**options)
