import pytest

from tagrpo.rewards import FinalAnswerReward, Score
from tagrpo.rewards.extraction import canonical_number


@pytest.mark.parametrize(
    ("response", "reference", "answer"),
    [
        ("3 + 24 = 27 #### 27", "27", "27"),
        ("#### 1,000", "1000", "1000"),
        ("#### $1000.00", "1,000", "1000"),
        ("#### 18.", "18", "18"),
        ("#### 007", "7", "7"),
        ("#### -0", "0", "0"),
        ("#### 50%", "50", "50"),
        ("#### .5", "0.50", "0.5"),
        ("#### 3\nThat is all, 4 times checked.", "3", "3"),
        ("####\n12", "12", "12"),
        ("#### 5 #### 6", "6", "6"),
        ("#### Paris", "Paris", "Paris"),
        ("#### 2", ("1", "2"), "2"),
    ],
)
def test_equal_answers_are_correct(response, reference, answer):
    assert FinalAnswerReward()(response, reference) == Score(True, answer, None)


@pytest.mark.parametrize(
    ("response", "reference", "answer"),
    [
        ("#### 4 2", "42", "4 2"),
        ("#### 27 apples", "27", "27 apples"),
        ("#### -27", "27", "-27"),
        ("#### 27.5", "27", "27.5"),
        ("#### 2,7", "27", "2,7"),
        ("#### 6 #### 5", "6", "5"),
        ("the answer is 27", "27", None),
        ("####", "27", None),
        ("#### \n ", "27", None),
        ("", "27", None),
        ("#### \u0662\u0667", "27", "\u0662\u0667"),
        ("#### paris", "Paris", "paris"),
    ],
)
def test_anything_else_is_wrong(response, reference, answer):
    assert FinalAnswerReward()(response, reference) == Score(False, answer, None)


def test_a_batch_is_the_single_scores_in_order():
    reward = FinalAnswerReward(marker="Answer:")
    assert reward.score_batch(["Answer: 1", "Answer: 2"], ["1", ("3", "4")]) == [
        Score(True, "1"),
        Score(False, "2"),
    ]
    with pytest.raises(ValueError, match="shorter"):
        reward.score_batch(["Answer: 1", "Answer: 2"], ["1"])


def test_a_number_of_a_million_digits_is_compared_exactly():
    digits = "9" * 1_000_000
    assert FinalAnswerReward()(f"#### {digits}", digits).correct
    assert not FinalAnswerReward()(f"#### {digits[:-1]}8", digits).correct


def test_nothing_to_compare_with_is_an_error():
    with pytest.raises(ValueError, match="at least one reference"):
        FinalAnswerReward()("#### 1", ())
    with pytest.raises(ValueError, match="marker"):
        FinalAnswerReward(marker="")


def test_canonical_numbers_agree_with_exact_fractions():
    from fractions import Fraction

    for text in ["0", "00.10", "-3.1400", "+5", "12,345,678.90", ".25", "9."]:
        canonical = canonical_number(text)
        assert canonical is not None
        assert Fraction(canonical) == Fraction(text.replace(",", "").removesuffix("."))
        assert canonical_number(canonical) == canonical
