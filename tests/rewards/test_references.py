"""Reference answers that no response could match are refused when questions are loaded."""

from __future__ import annotations

import pytest

from tagrpo.lab.tasks.countdown import CountdownReward
from tagrpo.lab.tasks.shortest_path import ShortestPathReward
from tagrpo.rewards import (
    FinalAnswerReward,
    MathReward,
    MixedReward,
    MultipleChoiceReward,
)

MIXED = MixedReward(MultipleChoiceReward(), FinalAnswerReward())
MATH = MathReward()
REFUSED = [
    (CountdownReward(), "24", "( 9 - 3 )"),
    (CountdownReward(), "9 * 4 - 12", "( 9 - 3 )"),
    (CountdownReward(), ("( 9 - 3 ) * 4", "3 - 9"), "got '3 - 9'"),
    (CountdownReward(), "9²", "( 9 - 3 )"),
    (ShortestPathReward(), "north", "got 'north'"),
    (ShortestPathReward(), "", "got ''"),
    (ShortestPathReward(), ("right down", "down"), "end in one cell"),
    (MultipleChoiceReward(), ("A", "E"), "choices 'ABCD'"),
    (FinalAnswerReward(), "40 + 32 = 72\n#### 72", "worked=true"),
    (FinalAnswerReward(), "1\n2", "worked=true"),
    (MIXED, "40 + 32 = 72 #### 72", "worked=true"),
    (MATH, "40 + 32 = 72\n#### 72", "worked=true"),
    (MATH, r"We get $x=4$, so the answer is $\boxed{4}$.", "worked=true"),
    (MATH, "First, we add.\n\nThen 4", "worked=true"),
    (MATH, "{'value': '4'}", "container"),
    (MATH, '{"value": 4}', "container"),
    (MATH, "['4', '5']", "container"),
    (MATH, "[['4'], ['5']]", "container"),
    (MATH, "The answer is 4", "sentence"),
    (MATH, "The final answer is: $4$.", "sentence"),
    (MATH, "Answer: 4", "sentence"),
    (MATH, "1" * 1001, "reward.max_answer_length"),
    (MATH, ("4", ""), "got ''"),
    (MATH, "  ", "drop the row"),
]
ACCEPTED = [
    (CountdownReward(), "( 9 - 3 ) * 4"),
    (CountdownReward(), ("( 9 - 3 ) * 4", "4 * ( 9 - 3 )")),
    (ShortestPathReward(), ("right down", "down right")),
    (MultipleChoiceReward(), "(b)"),
    (FinalAnswerReward(), "1,000"),
    (MIXED, "B"),
    (MIXED, "72"),
    (MATH, r"\frac{1}{2}"),
    pytest.param(MATH, r"\{1, 2\}", marks=pytest.mark.distributed),  # a worker compares sets
    pytest.param(MATH, "[3,4)", marks=pytest.mark.distributed),
    (MATH, r"\text{Evelyn}"),
    (MATH, "1" * 1000),
]


@pytest.mark.parametrize(("reward", "reference", "message"), REFUSED)
def test_a_reference_that_nothing_matches_is_refused(reward, reference, message):
    with pytest.raises(ValueError, match="Expected") as error:
        reward.check_reference(reference)
    assert message in str(error.value)


@pytest.mark.parametrize(("reward", "reference"), ACCEPTED)
def test_a_reference_that_is_correct_itself_is_accepted(reward, reference):
    reward.check_reference(reference)
    texts = (reference,) if isinstance(reference, str) else reference
    prefix = {FinalAnswerReward: "#### {}", MathReward: r"\boxed{{{}}}", MultipleChoiceReward: "Answer: {}"}
    shown = prefix.get(type(reward), "Answer: {}\n#### {}" if reward is MIXED else "{}")
    assert all(reward(shown.format(text, text), reference).correct for text in texts)


NOTES = [
    ("4", ()),
    ("4210_5", ("base",)),
    (r"\text{A5}_{11}", ("base",)),
    ("$6m$", ("letters",)),
    ("2s", ("letters",)),
    (r"2\text{ s}", ()),
    ("81, 256", ("spaced digits", "several values")),
    (("4", "1010_2"), ("base",)),
    ("10{,}000", ()),
    (r"x=1 \text{ or } x=2", ("several values",)),
]


@pytest.mark.parametrize(("reference", "notes"), NOTES)
def test_references_that_can_be_read_in_several_ways_are_named(reference, notes):
    assert MATH.reference_notes(reference) == notes
