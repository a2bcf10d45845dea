"""Numbers in words, against words built from tables; units of currencies."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tagrpo.rewards.arithmetic import Number
from tagrpo.rewards.forms import Quantity
from tagrpo.rewards.reading import read_answer
from tagrpo.rewards.units import number_in_words

SMALL_WORDS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen"""
SMALL = SMALL_WORDS.split()
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def in_words(number):
    if number < 20:
        return SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return TENS[tens - 2] + (f"-{SMALL[ones]}" if ones else "")
    hundreds, rest = divmod(number, 100)
    return f"{SMALL[hundreds]} hundred" + (f" and {in_words(rest)}" if rest else "")


def test_every_number_below_a_thousand_is_read_in_words():
    for number in range(1000):
        words = in_words(number)
        assert number_in_words(words) == number_in_words(words.replace(" and ", " ").title()) == number
        if number:
            assert number_in_words(f"{words} thousand {words}") == 1001 * number
            assert number_in_words(f"{words} million") == 10**6 * number


def test_fractions_are_read_in_words():
    assert number_in_words("two-thirds") == Fraction(2, 3)
    assert number_in_words("one half") == number_in_words("half") == Fraction(1, 2)
    assert number_in_words("Seven eighths") == Fraction(7, 8)


def test_other_words_are_no_number():
    for words in (
        "",
        "five six",
        "twenty ten",
        "thousand",
        "one or two",
        "twenty-",
        "fivesix",
        "hundred hundred",
    ):
        assert number_in_words(words) is None


NAMES = {
    r"\$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee", "Rs": "rupee", "Rs.": "rupee",
    "USD ": "dollar", "EUR ": "euro", r"\text{GBP} ": "pound", r"US\$": "dollar",
}  # fmt: skip


@pytest.mark.parametrize(("sign", "name"), NAMES.items())
def test_an_amount_behind_a_currency_has_its_name_as_unit(sign, name):
    form = read_answer(f"{sign}12.50")
    assert isinstance(form, Quantity)
    assert form.unit.name == name
    assert form.number == Number(Fraction(25, 2))
