from __future__ import annotations

import pytest

from tagrpo.rephrasing.candidates import Pair
from tagrpo.rephrasing.rephraser import Judge, read_judgement


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"equivalent": true, "reason": "ok"}', True),
        ("The numbers differ.\n**EQUIVALENT:** no", False),
        ("EQUIVALENT: yes? On reflection:\nEquivalent: No.", False),
        ('{"equivalent": "maybe"}', None),
        ("", None),
    ],
)
def test_a_judge_is_undecided_unless_it_says_so(text, expected):
    assert read_judgement(text)[0] is expected


def test_the_judge_does_not_see_the_answer():
    call = Judge(model="m").call(Pair("What is 2 + 40?", "Add 2 and 40.", ("42",)))
    assert "42" not in call.system + call.user
