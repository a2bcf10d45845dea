from __future__ import annotations

import random

import pytest
import torch

from tagrpo.rephrasing.checks import (
    TEXT_CHECKS,
    SimilarityBand,
    answer_not_leaked,
    ngram_similarity,
    not_identical,
    numbers_kept,
    symbols_kept,
    well_formed,
)
from tagrpo.rephrasing.verdicts import Pair, Verdict, accepted, review

# Pairs of the paper's own examples (Box 1) in the spelling of the dataset.
GOOD = [
    (
        r"Kevin Kangaroo begins hopping on a number line at 0. He wants to get to 1, but he can hop only $\frac{1}{3}$ "
        r"of the distance. Each hop tires him out so that he continues to hop $\frac{1}{3}$ of the remaining distance. "
        "How far has he hopped after five hops? Express your answer as a common fraction.",
        "Starting at 0 on a number line, Kevin Kangaroo aims to reach 1 by hopping only 1/3 of the distance each time. "
        "As he gets tired, he continues to hop 1/3 of the remaining distance. After completing five hops, what is the "
        "total distance he has covered, expressed as a common fraction?",
    ),
    (
        "If $x^2+y^2=1$, what is the largest possible value of $|x|+|y|$?",
        "What is the maximum value possible for $|x|+|y|$ if $x^{2} + y^{2} = 1$?",
    ),
    (
        r"Expand $(2z^2 + 5z - 6)(3z^3 - 2z + 1)$.",
        r"What is the expanded form of $\left(2z^2+5z-6\right)\left(3z^3-2z+1\right)$?",
    ),
    (
        "The quadratic equation $x^2+mx+n=0$ has roots that are twice those of $x^2+px+m=0,$ and none of $m,n,$ and "
        "$p$ is zero. What is the value of $n/p$?",
        "For the quadratic equation $x^2+mx+n=0$, the roots are twice the roots of $x^2+px+m=0$. None of the variables "
        "$m$, $n$, and $p$ are zero. What is the value of $n/p$?",
    ),
    (
        "Weng earns $12 an hour for babysitting. Yesterday, she just did 50 minutes of babysitting. How much did she "
        "earn?",
        "For babysitting, Weng is paid $12 per hour. If she babysat for fifty minutes yesterday, what did she earn?",
    ),
    ("Tim has 12 eggs and breaks half of them.", "Of a dozen eggs, Tim breaks half."),
]


@pytest.mark.parametrize(("question", "rephrasing"), GOOD)
def test_good_rephrasings_pass_every_check_of_the_text(question, rephrasing):
    verdicts = review(Pair(question, rephrasing, ("1234567",)), TEXT_CHECKS)
    assert [(v.check, v.reason) for v in verdicts if not v.passed] == []


QUESTION = r"If $x^2 - 3x = 10$ and $x > 0$, how many cents do 24 stamps of $\$0.37$ and $x$ more cost?"


@pytest.mark.parametrize(
    ("old", "new", "check"),
    [
        ("24", "42", numbers_kept),
        ("0.37", "0.73", numbers_kept),
        ("how many cents", "how many cents, within 9 days,", numbers_kept),
        (" and $x > 0$", "", symbols_kept),
        ("how many", "if $y = x$, how many", symbols_kept),
        ("x > 0", "x < 0", symbols_kept),
        ("x^2 - 3x", "x^2 + 3x", symbols_kept),
        ("how many cents", "how many cents (it is 2073)", answer_not_leaked),
        ("how many", "Solution: therefore x = 5. How many", well_formed),
        ("how many cents do", "how many cents do", not_identical),
    ],
)
def test_each_kind_of_damage_is_seen_by_its_check(old, new, check):
    damaged = QUESTION.replace(old, new)
    verdict = check(Pair(QUESTION, damaged, ("2073",)))
    assert verdict.passed is False
    assert verdict.reason


def test_changing_any_number_of_a_text_is_seen():
    rng = random.Random(0)
    for _ in range(200):
        numbers = rng.sample(range(2, 100), 4)
        text = "A has {} cats, B has {} dogs, C has {} birds. They sell {} in all.".format(*numbers)
        place, other = rng.randrange(4), rng.choice([n for n in range(2, 100) if n not in numbers])
        changed = "A has {} cats, B has {} dogs, C has {} birds. They sell {} in all.".format(
            *(other if i == place else n for i, n in enumerate(numbers))
        )
        verdict = numbers_kept(Pair(text, changed))
        assert verdict.reason == f"missing: {numbers[place]}; new: {other}"


@pytest.mark.parametrize(
    ("question", "rephrasing", "kept"),
    [
        ("Let $x+2y=7$, $x-y=1$.", "Let $p-q=1$, $p+2q=7$.", True),
        ("Let $x+2y=7$, $x-y=1$.", "Let $q-p=1$, $p+2q=7$.", False),
        ("Let $x+2y=7$.", "Let $p+2p=7$.", False),
        (r"Find $\sin x + \cos y$.", r"Find $\sin u + \cos v$.", True),
        (r"Find $\sin x + \cos y$.", r"Find $\cos u + \sin v$.", False),
        (r"Let $x = 1 \text{ and } t = 2$.", r"Let $s = 1 \text{ and } w = 2$.", True),
    ],
)
def test_renaming_is_allowed_one_to_one_and_only_where_asked_for(question, rephrasing, kept):
    assert symbols_kept(Pair(question, rephrasing, renames=True)).passed is kept
    assert symbols_kept(Pair(question, rephrasing)).passed is False


def test_a_figure_must_be_copied():
    question = 'How long is $AB$? [asy] draw((0,0)--(3,4)); label("$A$",(0,0)); [/asy]'
    assert symbols_kept(
        Pair(question, 'Find the length of $AB$. [asy]\ndraw((0,0)--(3,4)); label("$A$",(0,0));[/asy]')
    ).passed
    assert not symbols_kept(Pair(question, "Find the length of $AB$, from $(0,0)$ to $(3,4)$.")).passed


def test_a_leak_is_new_text_and_not_what_the_question_says_anyway():
    assert not answer_not_leaked(
        Pair("Is it a prime?", r"Is 7, whose answer is $\frac12$, a prime?", (r"\frac{1}{2}",))
    ).passed
    assert answer_not_leaked(Pair("Which is larger, 2 or 3?", "Of 2 and 3, which is larger?", ("3",))).passed
    assert answer_not_leaked(Pair("How many?", "How many in 123 days?", ("2",))).passed, "2 is a digit of 123 only"


def test_copies_of_other_rephrasings_are_refused():
    pair = Pair("What is $1+1$?", "Add one to one.", others=("Add one  to one!",))
    assert not_identical(pair).reason == "the same words as another rephrasing"


def test_the_band_is_measured_with_the_encoder_that_is_given():
    vectors = {"q": [1.0, 0.0], "near": [3.0, 4.0], "far": [0.0, 2.0]}

    def make():
        return lambda texts: torch.tensor([vectors[text] for text in texts])

    band = SimilarityBand(low=0.5, high=0.9, encoder=make)
    assert band(Pair("q", "near")) == Verdict("similarity", True, "similarity 0.600", pytest.approx(0.6))
    assert band(Pair("q", "far")).reason == "similarity 0.000 is below 0.5"
    assert band(Pair("q", "q")).reason == "similarity 1.000 is above 0.9"
    with pytest.raises(ValueError, match="low < high"):
        SimilarityBand(low=0.5, high=0.5)


def test_ngram_similarity_is_one_for_equal_texts_and_symmetric():
    assert ngram_similarity("What is  this?", "what is this?") == 1.0
    assert ngram_similarity("abcdef", "defabc") == ngram_similarity("defabc", "abcdef") == pytest.approx(2 * 2 / 8)
    assert ngram_similarity("", "") == 1.0


def test_undecided_verdicts_count_as_told():
    verdicts = [Verdict("judge", None, "?"), Verdict("numbers_kept", True, "")]
    assert accepted(verdicts)
    assert not accepted(verdicts, undecided=False)


def test_checks_never_raise_on_hostile_texts():
    rng = random.Random(1)
    pieces = [
        "$",
        "\\",
        "{",
        "}",
        "\\frac",
        "\\[",
        "\\]",
        "[asy]",
        "[/asy]",
        "1,",
        "x",
        "\0",
        "$$",
        "\\text{",
        "½",
        "\n- ",
    ]
    for _ in range(300):
        text = "".join(rng.choices(pieces, k=40))
        for renames in (False, True):
            assert all(v.reason for v in review(Pair("What is $x+1$?", text, ("x",), renames), TEXT_CHECKS))
            assert all(v.reason for v in review(Pair(text, "What is $x+1$?", (text,), renames), TEXT_CHECKS))
