from __future__ import annotations

import json

import pytest

from tagrpo.rephrasing.replies import read_judgement, read_rephrasings, restore_latex

LATEX = r"If $\frac{a}{b} \neq \tan\theta$ and $\beta \to \rho$, is $x \times \text{two} \not= \nabla$ right?"


def test_rephrasings_are_read_in_every_form_that_models_write():
    texts = ["Add 1.", "Sum\nit."]
    for reply in (
        json.dumps({"rephrasings": texts}),
        json.dumps(texts),
        f"```json\n{json.dumps({'rephrasings': texts}, indent=1)}\n```",
        "Here they are.\n<rephrasing>Add 1.</rephrasing>\n<rephrasing>\nSum\nit.\n</rephrasing>",
    ):
        assert read_rephrasings(reply) == texts


def test_latex_survives_json_that_was_written_without_doubled_backslashes():
    assert read_rephrasings(json.dumps({"rephrasings": [LATEX]})) == [LATEX]
    single = '{"rephrasings": ["' + LATEX + '"]}'
    assert read_rephrasings(single) == [LATEX]


def test_line_breaks_and_tabs_that_are_meant_stay():
    text = "Given:\n- one\n- two\n\tand\nnot three\n\nequals what?"
    assert restore_latex(text) == text


@pytest.mark.parametrize(
    "reply", ["", "I can't.", "{", '{"rephrasings": 3}', '{"rephrasings": [1, null, ""]}', "[" * 10**5]
)
def test_what_keeps_to_no_format_yields_nothing(reply):
    assert read_rephrasings(reply) == []


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ('{"equivalent": true, "reason": "ok"}', True),
        ("The numbers differ.\n**EQUIVALENT:** no", False),
        ("EQUIVALENT: yes? On reflection:\nEquivalent: No.", False),
        ('{"equivalent": "maybe"}', None),
        ("", None),
    ],
)
def test_a_judge_is_undecided_unless_it_says_so(reply, expected):
    assert read_judgement(reply)[0] is expected
