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
]
ACCEPTED = [
    (CountdownReward(), "( 9 - 3 ) * 4"),
    (CountdownReward(), ("( 9 - 3 ) * 4", "4 * ( 9 - 3 )")),
    (ShortestPathReward(), ("right down", "down right")),
    (MultipleChoiceReward(), "(b)"),
    (FinalAnswerReward(), "1,000"),
    (MIXED, "B"),
    (MIXED, "72"),
    (MathReward(), r"\frac{1}{2}"),
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
