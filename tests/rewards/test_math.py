import json
import pickle
import random
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagrpo.rewards import MathReward, Score
from tagrpo.rewards.canonical import references_of
from tagrpo.rewards.comparison import compare_forms
from tagrpo.rewards.extraction import extract_reference
from tagrpo.rewards.reading import read_answer

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the benchmark files are not here")

TABLE = [json.loads(line) for line in Path(__file__).with_name("pairs.jsonl").read_text().splitlines()]
"""Pairs of reference and answer, labelled by mathematics; `right` is null where graders differ by convention."""
EQUAL = [
    (r"\frac{1}{2}", "0.5"),
    ("1/2", r"\frac12"),
    (r"50\%", "50"),
    (r"\frac{35}{2}", r"17.5\%"),
    (r"30^\circ", "30"),
    ("30", r"30^\circ"),
    (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
    ("(x+1)^2", "x^2+2x+1"),
    ("x=5", "5"),
    ("5", "x=5"),
    ("1,2", "2,1"),
    (r"\{1,2\}", "2, 1"),
    (r"(-\infty,2)\cup(3,\infty)", r"(3,\infty) \cup (-\infty, 2)"),
    (r"1 \le x < 3", "[1,3)"),
    (r"x \in [-2,7]", "[-2,7]"),
    ("5", r"5\text{ cm}"),
    (r"5\text{ cm}", "5"),
    (r"1.6 \times 10^{-19}", r"1.60 \times 10^{-19}"),
    ("4.5e33", r"4.5 \times 10^{33}"),
    (r"\text{Evelyn}", "evelyn"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}"),
    ("y=2x+3", "y = 3+2x"),
    ("2x+y=3", "4x+2y=6"),
    (r"3\pm 2\sqrt2", r"3+2\sqrt2,3-2\sqrt2"),
    (r"137 \frac{1}{2}", "137.5"),
    ("10,080", "10080"),
    (r"1\,234\,567", "1234567"),
    ("200, 100", "100, 200"),
    ("0.333333", r"\frac13"),
    ("2^{1009}", r"2\cdot 2^{1008}"),
    ("$(1,1), (3,2)$", "(3,2),(1,1)"),
    ("6-5i", "-5i+6"),
    (r"\$18.90", "18.9"),
    (r"11\sqrt{2}", r"\sqrt{242}"),
    ("5!", "120"),
    (r"\text{(B)}", "B"),
    (r"\frac{x}{2} - \frac{1}{4} + ce^{-2x}", r"\frac{2x-1}{4}+ce^{-2x}"),
    (("7", "8"), "8"),
]
DIFFERENT = [
    (r"1.39 \times 10^{-10}", r"3.3 \times 10^{-10}"),
    ("1.6e-19", "1.7e-19"),
    ("0.0000672", "0.000067"),
    ("0", "0.0000001"),
    (r"\frac{1}{3}", "0.33"),
    (r"\pi", "3.14"),
    (r"50\%", "0.5"),
    ("(1,2)", "(2,1)"),
    ("(1,2)", "[1,2]"),
    ("x+1", "x-1"),
    ("x", "y"),
    ("1,2", "1,2,3"),
    ("5", "-5"),
    (r"\frac{1}{2}", r"-\frac{1}{2}"),
    (r"\sqrt2", r"\sqrt3"),
    ("10^{10}", "10^{11}"),
    (r"\text{odd}", "even"),
    (r"\text{odd}", "d"),
    ("12", "1,2"),
    ("A", "B"),
    ("2", "1 or 2"),
    ("5", "5x"),
    ("1000000", "1000001"),
    (r"\emptyset", "0"),
    ("6", r"\{6,7\}"),
    ("x=2", "y=2"),
    ("100000000000000000000", "100000000000000000000.5"),
    (("7", "8"), "9"),
]


@pytest.fixture(scope="module")
def reward():
    with closing(MathReward(workers=1)) as reward:
        yield reward


def boxed(answer):
    return rf"Therefore the answer is $\boxed{{{answer}}}$."


def scored(reward, pairs):
    return reward.score_batch([boxed(answer) for _, answer in pairs], [reference for reference, _ in pairs])


def test_equal_answers_are_correct_however_they_are_written(reward):
    scores = scored(reward, EQUAL)
    assert [pair for pair, score in zip(EQUAL, scores, strict=True) if not score.correct] == []


def test_different_answers_are_wrong_and_no_failure(reward):
    scores = scored(reward, DIFFERENT)
    assert [
        pair for pair, score in zip(DIFFERENT, scores, strict=True) if score.correct or score.failure
    ] == []


def test_a_response_without_an_answer_is_wrong(reward):
    for response in ("", "I give up.", r"\boxed{}", r"\boxed{4"):
        assert reward(response, "4") == Score(False, None)


class CountingPool:
    """Passes jobs on, remembers them, and counts how often their outcomes are waited for."""

    def __init__(self, pool):
        self.pool, self.jobs, self.waits = pool, [], 0

    def submit(self, jobs):
        self.jobs += jobs
        wait = self.pool.submit(jobs)

        def counted():
            self.waits += 1
            return wait()

        return counted

    def close(self):
        self.pool.close()


@pytest.fixture
def counted(monkeypatch):
    with closing(MathReward(workers=1, cpu_seconds=0.5)) as reward:
        monkeypatch.setattr(reward, "_pool", CountingPool(reward._pool))
        yield reward


@pytest.mark.distributed
def test_each_distinct_comparison_is_made_once(counted):
    answers = [r"2\sin x\cos x", r"2 \cos x \sin x", r"2\sin x \cos x ", r"\sin x", r"$\sin x$"] * 8
    questions = [r"\sin 2x"] * 40 + [r"\cos(\frac{\pi}{2}-x)"] * 40
    scores = counted.score_batch([boxed(answer) for answer in answers * 2], questions)
    assert [score.correct for score in scores[:5]] == [True, True, True, False, False]
    assert [score.correct for score in scores[40:45]] == [False, False, False, True, True]
    assert scores == scores[:5] * 8 + scores[40:45] * 8
    assert len(counted._pool.jobs) == 6, "three answers of each of the two questions"
    assert counted.score_batch([boxed(answer) for answer in answers], questions[:40]) == scores[:40]
    assert len(counted._pool.jobs) == 6, "these are remembered"


def test_numbers_and_polynomials_need_no_worker(counted):
    references = [
        "12",
        r"\frac{1}{2}",
        r"\text{odd}",
        ("3", r"\frac{6}{4}"),
        r"2\sqrt2",
        "x^2+2x+1",
        "1, 2",
        "5 m",
    ]
    answers = ["13", r"\frac{4}{8}", "odd", "1.5e0", r"\sqrt{8}", "(1+x)^2", r"\frac42, 1", "5m"]
    scores = counted.score_batch([boxed(answer) for answer in answers], references)
    assert [score.correct for score in scores] == [False, *[True] * 7]
    assert counted._pool.jobs == []


@pytest.mark.distributed
def test_verdicts_depend_on_the_pair_alone(reward):
    """Neither order, batches, workers, earlier scores nor pickling change a score: 80 pairs in 4 orders."""
    rng = random.Random(0)
    pairs = rng.sample(list(dict.fromkeys((row["reference"], row["answer"]) for row in TABLE)), 80)
    expected = dict(zip(pairs, scored(reward, pairs), strict=True))
    for size in (20, 33, 80):
        rng.shuffle(pairs)
        batches = [scored(reward, pairs[start : start + size]) for start in range(0, 80, size)]
        assert dict(zip(pairs, sum(batches, []), strict=True)) == expected
    copy = pickle.loads(pickle.dumps(reward))
    rng.shuffle(pairs)
    read_answer.cache_clear()
    with closing(copy), closing(MathReward(workers=2)) as fresh:
        assert dict(zip(pairs, scored(fresh, pairs), strict=True)) == expected
        assert dict(zip(pairs[:40], scored(copy, pairs[:40]), strict=True)) == {
            p: expected[p] for p in pairs[:40]
        }


@pytest.mark.parametrize(
    "pairs",
    [
        [("4", r"4\text{ or 5}"), ("4", "4 or 5")],
        [("5", "5€"), ("5", r"5\text{ €}")],
        [("5 yd", r"5\text{ yd}"), ("5 yd", r"5~\mathrm{yd}"), ("5 yd", "5 yd")],
    ],
)
def test_spellings_of_one_answer_have_one_verdict_in_any_order(pairs):
    with closing(MathReward(workers=1)) as forwards, closing(MathReward(workers=1)) as backwards:
        verdicts = [score.correct for score in scored(forwards, pairs)]
        assert [score.correct for score in scored(backwards, pairs[::-1])] == verdicts[::-1]
    assert len(set(verdicts)) == 1


@pytest.mark.distributed
def test_the_table_of_labelled_pairs(reward):
    """Every pair with one right value has it, whatever the others in the batch are."""
    labelled = [row for row in TABLE if row["right"] is not None]
    assert len(labelled) >= 600
    scores = scored(reward, [(row["reference"], row["answer"]) for row in labelled])
    wrong = [
        row
        for row, score in zip(labelled, scores, strict=True)
        if score.correct != row["right"] or score.failure
    ]
    assert wrong == []


CONVENTIONS = [
    ({"percent": "number"}, {(r"50\%", "50"): True, (r"50\%", "0.5"): False, ("0.5", r"50\%"): False}),
    ({"percent": "fraction"}, {(r"50\%", "50"): False, (r"50\%", r"\frac12"): True, ("0.5", r"50\%"): True}),
    ({"percent": "fraction"}, {(r"50i\%", "0"): False, ("0", r"50i\%"): False, (r"50i\%", "0.5i"): True}),
    ({"percent": "either"}, {(r"50\%", "50"): True, (r"50\%", "0.5"): True, (r"50\%", "5"): False}),
    ({"percent": "either"}, {(r"50i\%", "0"): False, ("0", r"50i\%"): False, (r"50i\%", "50i"): True}),
    ({"bare_base": True}, {("4210_5", "4210"): True, ("4210", "4210_5"): True, ("4210_5", "555"): False}),
    (
        {"bare_base": False},
        {("4210_5", "4210"): False, ("4210", "4210_5"): False, ("4210_5", "4210_{5}"): True},
    ),
    ({"bare_unit": True}, {(r"5\text{ cm}", "5"): True, ("5", "5 cm"): True}),
    (
        {"bare_unit": False},
        {(r"5\text{ cm}", "5"): False, ("5", "5 cm"): False, ("5 cm", r"5\text{ cm}"): True},
    ),
    ({"ordered_as_list": True}, {("(1,2)", "1, 2"): True, ("(1,2)", "2, 1"): False}),
    ({"ordered_as_list": False}, {("(1,2)", "1, 2"): False, ("1, 2", "2, 1"): True}),
    ({"decimal_tolerance": 1e-5}, {(r"\frac13", "0.333333"): True, (r"\frac13", "0.33"): False}),
    ({"decimal_tolerance": 0.0}, {(r"\frac13", "0.333333"): False, ("0.5", r"\frac12"): True}),
]


@pytest.mark.parametrize(("settings", "verdicts"), CONVENTIONS)
def test_conventions_are_options(settings, verdicts):
    with closing(MathReward(workers=1, **settings)) as reward:
        assert {
            pair: score.correct for pair, score in zip(verdicts, scored(reward, verdicts), strict=True)
        } == verdicts


@pytest.mark.parametrize("settings", [{"percent": "both"}, {"decimal_tolerance": -1.0}])
def test_an_unknown_convention_is_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        MathReward(**settings)


EQUAL_VOTES = [
    (r"\frac12", "1/2", "0.5", ".50", r"\dfrac{2}{4}", "x=0.5", r"0.5\text{ cm}"),
    (r"\sqrt8", r"2\sqrt2", r"2\sqrt{2}", r"\frac{4}{\sqrt2}"),
    ("(x+1)^2", "x^2+2x+1", "1 + 2x + x^2"),
    ("1, 2", r"\{2,1\}", r"2 \text{ and } 1"),
    ("(1,2)", r"\left( 1, \frac42 \right)"),
    ("4000", r"4\text{ thousand}", "4{,}000"),
    (r"\text{Evelyn}", "evelyn"),
    ("-4", r"(1+\sqrt5)(1-\sqrt5)"),
]


def test_equal_answers_vote_together_and_different_ones_apart(reward):
    """The vote is a function of the answer alone: it is the same for a right and for a wrong answer."""
    votes = []
    for answers in EQUAL_VOTES:
        found = {score.answer for score in scored(reward, [("7", answer) for answer in answers])}
        found |= {score.answer for score in scored(reward, [(answers[0], answer) for answer in answers])}
        assert len(found) == 1, found
        votes += found
    assert len(set(votes)) == len(EQUAL_VOTES)
    assert votes[:2] == ["0.5", "2.82842712475"]


@given(
    st.integers(-(10**30), 10**30),
    st.integers(-(10**30), 10**30),
    st.sampled_from(["{}", "{}.0", "+{}", "{:,}", "${}$"]),
)
def test_whole_numbers_are_compared_exactly(one, other, spelling):
    """Verdicts on whole numbers are those of integers, so that results on tasks with such answers cannot move."""
    answer = spelling.format(other).replace("+-", "-")
    for reference in (one, other):
        plan = compare_forms(read_answer(str(reference)), read_answer(answer))
        assert plan is (reference == other)
    assert str(read_answer(answer)) == str(other)


@pytest.mark.distributed
def test_score_async_does_not_wait(counted):
    slow = counted.score_async([boxed("(1+x)^{1000000}"), boxed("x+1")], [r"x+\frac12", "1+x"])
    assert (len(counted._pool.jobs), counted._pool.waits) == (1, 0), "polynomials need no worker"
    assert [score.correct for score in slow()] == [False, True]
    assert counted._pool.waits == 1


def hostile(rng):
    """A response that hangs, explodes, overflows or malforms whatever looks at it without a bound."""
    n, d = rng.randint(2, 5), rng.choice([30, 90, 300, 2000])
    return rng.choice(
        [
            boxed(f"{n}^{{{n}^{{10}}}}"),
            boxed(rf"\frac{{1}}{{{n}+" * d + "x" + "}" * d),
            boxed(f"(1+x)^{{{n}00000}}"),
            boxed("{" * d + "1" + "}" * d),
            boxed("(" * d + "1" + ")" * d),
            boxed(rf"\sqrt{{{n}+" * 40 + "x" + "}" * 40),
            boxed("9" * (400 * n)) + "}" * n,
            boxed(f"{n}0000000!"),
            r"\boxed{" * d,
            "}" * d + r"\boxed{" + "x" * 200_000,
            "\\" * (1000 * n) + boxed("\x00\x1b[31m\u202e\ud800"),
            "answer is " * 20_000 + "#### " * 20_000,
            boxed("\\" + rng.choice(["int", "sum", "lim", "begin{pmatrix}", "left(", "frac", "text{"])),
            boxed("__import__('os').system('exit 1')") + "\n```python\nwhile True: pass\n```",
            boxed("".join(chr(rng.randint(0, 0x2FFF)) for _ in range(60))),
        ]
    )


@pytest.mark.distributed
@pytest.mark.parametrize("count", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_hostile_responses_neither_raise_nor_score(count):
    """They end, which is the point: each distinct expression costs at most its own tenth of a CPU second."""
    rng = random.Random(0)
    responses = [hostile(rng) for _ in range(count)]
    with closing(MathReward(workers=1, cpu_seconds=0.1)) as reward:
        scores = reward.score_batch(responses, [r"\frac{x}{7}"] * count)
        assert reward(boxed(r"\frac17 x"), r"\frac{x}{7}") == Score(True, r"\frac{1}{7}x")
    assert not any(score.correct for score in scores)
    failures = Counter(score.failure for score in scores)
    assert failures["timeout"] >= count // 20
    assert failures["length"] >= count // 20


def test_an_answer_that_is_too_long_is_not_compared():
    with closing(MathReward(workers=1, max_answer_length=10)) as reward:
        assert reward(boxed("1" * 11), "1" * 11) == Score(False, None, "length")
        assert reward(boxed("1" * 10), "1" * 10) == Score(True, "1" * 10)


def test_pickling_carries_the_settings_and_no_process(reward):
    copy = pickle.loads(pickle.dumps(reward))
    assert (copy._limits, copy.max_answer_length) == (reward._limits, reward.max_answer_length)
    with closing(copy):
        assert copy(boxed("x+1"), "1+x").correct


@pytest.mark.parametrize("setting", ["bare_base", "bare_unit", "ordered_as_list"])
def test_pickling_carries_each_convention(setting):
    with closing(MathReward(percent="either", decimal_tolerance=0.5, **{setting: False})) as reward:
        assert getattr(reward.conventions, setting) is False
        copy = pickle.loads(pickle.dumps(reward))
        assert copy.conventions == reward.conventions


def references(name):
    with (DATA / f"{name}.jsonl").open() as lines:
        rows = [json.loads(line) for line in lines]
    if name in ("math_train", "gsm8k_train"):
        found = [
            extract_reference(row.get("solution") or row["answer"], row.get("problem", "")) for row in rows
        ]
        return [reference for reference in found if reference]
    return [tuple(a) if isinstance(a := row["answer"], list) else str(a) for row in rows]


BENCHMARKS = {
    "amc": 83,
    "math500": 500,
    "minerva": 272,
    "olympiadbench": 675,
    "gsm8k_train": 7473,
    "math_train": 7498,
}


@pytest.mark.distributed
@needs_data
@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_reference_answer_is_correct_against_itself(reward, name):
    all_references = references(name)
    assert len(all_references) == BENCHMARKS[name]
    pairs = [(reference, answer) for reference in all_references for answer in references_of(reference)]
    assert [pair for pair, score in zip(pairs, scored(reward, pairs), strict=True) if not score.correct] == []


@pytest.mark.distributed
@needs_data
@pytest.mark.parametrize("name", [n for n in BENCHMARKS if n != "math_train"])
def test_hardly_any_answer_of_another_row_is_correct(reward, name):
    """Under 0.5 % of random pairs that are neither of one vote."""
    rng = random.Random(0)
    all_references = references(name)
    pairs = []
    while len(pairs) < 15:
        reference, (answer, *_) = rng.choice(all_references), references_of(rng.choice(all_references))
        votes = {str(read_answer(text)) for text in references_of(reference)}
        if str(read_answer(answer)) not in votes:
            pairs.append((reference, answer))
    scores = scored(reward, pairs)
    assert [pair for pair, score in zip(pairs, scores, strict=True) if score.correct] == []
    assert [pair for pair, score in zip(pairs, scores, strict=True) if score.failure] == []
