"""The embedded task: what the questions say, how they are spread, and what no split shares."""

import random
import re
import zlib
from collections import Counter
from itertools import combinations, product
from math import sqrt

import pytest
import yaml

from tagrpo.datamodules.sources.arithmetic import (
    REPHRASINGS,
    SPLITS,
    ArithmeticSource,
)
from tagrpo.datamodules.sources.phrasings import FAMILIES, phrase
from tagrpo.datamodules.sources.word_problems import Operation, Problem, sample_problem
from tagrpo.lab.starters.architecture import build_tokenizer
from tagrpo.lab.starters.examples import (
    LARGE_SHARE,
    TEMPLATES,
    arithmetic_example,
    arithmetic_vocabulary,
    solution,
    templated_example,
    words,
)
from tagrpo.settings.methods import options_of

EVERY_SOURCE = list(product(SPLITS, REPHRASINGS))
EVENT = re.compile(
    r"(?P<add>(buys|finds|plus|\+) (\d+)|(\d+) are given)"
    r"|(?P<subtract>(sells|loses|minus|-) (\d+)|(\d+) are taken)"
    r"|(?P<double>doubles them|twice|they are doubled|\* 2)",
    re.IGNORECASE,
)
START = re.compile(r"(?:has|starts with|start|Compute) (\d+)|^(\d+) \w+ are owned")


def read(question: str) -> str:
    """Understand a question by its verbs alone, as a Python expression."""
    events = []
    for match in EVENT.finditer(question):
        number = re.search(r"\d+", match.group())
        symbol = {"add": "+", "subtract": "-", "double": "*"}[match.lastgroup]
        events.append(f"{symbol} {2 if symbol == '*' else number.group()}")
    if "Before that" in question:
        events.reverse()
    (start,) = [a or b for a, b in START.findall(question)]
    for event in events:
        start = f"({start} {event})"
    return start


@pytest.mark.parametrize(("split", "regime"), EVERY_SOURCE)
def test_every_phrasing_of_a_question_says_what_is_answered(split, regime):
    for group in ArithmeticSource(split, regime, size=120).load():
        assert len(group.rephrasings) == 3
        for text in (group.question, *group.rephrasings):
            assert read(text) == group.metadata["expression"], text
        assert group.answer == (str(eval(group.metadata["expression"])),)


@pytest.mark.parametrize(("split", "regime"), EVERY_SOURCE)
def test_a_question_and_its_rephrasings_are_told_in_different_families(split, regime):
    groups = ArithmeticSource(split, regime, size=60).load()
    originals = Counter(group.metadata["family"] for group in groups)
    assert set(originals) == set(SPLITS[split].originals[regime])
    assert max(originals.values()) == min(originals.values())
    for group in groups:
        told = {group.metadata["family"], *group.metadata["rephrasing_families"]}
        assert len(told) == 4
        assert len({group.question, *group.rephrasings}) == 4
        assert told - {group.metadata["family"]} <= set(REPHRASINGS[regime])


def test_ids_and_problems_are_unique():
    groups = ArithmeticSource("validation", size=1000).load()
    assert len({group.id for group in groups}) == 1000
    assert len({group.metadata["expression"] for group in groups}) == 1000


def test_no_two_splits_share_a_problem_whatever_the_seed():
    # A validation split of 2000 holds a tenth of all its problems: chance alone would share hundreds.
    expressions = {
        split: {
            group.metadata["expression"]
            for seed in (0, 1)
            for group in ArithmeticSource(split, size=2000, num_rephrasings=0, seed=seed).load()
        }
        for split in SPLITS
    }
    for one, other in combinations(SPLITS, 2):
        assert not expressions[one] & expressions[other], (one, other)


def test_supervised_problems_come_from_the_training_buckets():
    rng = random.Random(0)
    buckets = Counter(zlib.crc32(read(arithmetic_example(rng).question).encode()) % 10 for _ in range(2000))
    assert set(buckets) == set(range(6))


def test_the_same_arguments_give_the_same_questions_and_another_seed_gives_others():
    first = ArithmeticSource("train", size=50, seed=3).load()
    assert ArithmeticSource("train", size=50, seed=3).load() == first
    assert ArithmeticSource("train", size=80, seed=3).load()[:50] == first
    other = {group.metadata["expression"] for group in ArithmeticSource("train", size=50, seed=4).load()}
    assert len(other & {group.metadata["expression"] for group in first}) < 10


def test_size_split_starts_from_larger_numbers_than_training():
    def starts(split):
        groups = ArithmeticSource(split, size=300).load()
        return {int(re.search(r"\d+", group.metadata["expression"]).group()) for group in groups}

    assert starts("train") == set(range(2, 31))
    assert starts("test_size") == set(range(31, 61))


def test_every_value_on_the_way_lies_between_0_and_99_and_nothing_large_is_doubled():
    rng = random.Random(0)
    problems = [sample_problem(rng, (2, 3), (2, 99)) for _ in range(2000)]
    values = {value for problem in problems for value in problem.values}
    assert (min(values), max(values)) == (0, 99)
    for problem in problems:
        for operation, before, after in zip(problem.operations, problem.values[:-1], problem.values[1:], strict=True):
            assert after == eval(f"{before} {operation.symbol} {operation.operand}")
            assert operation.symbol != "*" or before <= 30


def test_written_solutions_are_true_step_by_step_and_end_in_the_answer():
    rng = random.Random(1)
    for _ in range(3000):
        example = arithmetic_example(rng)
        chain, _, final = example.response.rpartition("#### ")
        assert int(final) == eval(read(example.question))
        if chain:
            value, *steps = re.findall(r"(?:[-+*] )?\d+(?= [-+*#=])|(?<== )\d+", chain)
            for operation, result in zip(steps[::2], steps[1::2], strict=True):
                value = eval(f"{value} {operation}")
                assert value == int(result)
            assert value == int(final)


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.share > 0])
def test_strategies_occur_as_often_as_their_family_says(family):
    # Regrouping shows where a subtraction comes first: 9 - 4 + 1 becomes 9 + 1 - 4.
    problem = Problem(9, (Operation("-", 4), Operation("+", 2)), person=0, thing=0)
    rng, draws = random.Random(2), 4000
    counts = Counter(solution(problem, FAMILIES[family], rng) for _ in range(draws))
    told = [counts["9 - 4 = 5 + 2 = 7 #### 7"], counts["9 + 2 = 11 - 4 = 7 #### 7"], counts["#### 7"]]
    assert sum(told) == draws
    for count, share in zip(told, FAMILIES[family].strategies, strict=True):
        assert abs(count - draws * share) < 4 * sqrt(draws * share * (1 - share))


def test_additions_are_not_moved_before_a_doubling_nor_beyond_99():
    additions_first = FAMILIES["list"].__class__("", "", (), (), (), strategies=(0, 1, 0))
    doubling = Problem(9, (Operation("*", 2), Operation("+", 2)), person=0, thing=0)
    near_limit = Problem(95, (Operation("-", 4), Operation("+", 7)), person=0, thing=0)
    assert solution(doubling, additions_first, random.Random(0)) == "9 * 2 = 18 + 2 = 20 #### 20"
    assert solution(near_limit, additions_first, random.Random(0)) == "95 - 4 = 91 + 7 = 98 #### 98"


def test_supervised_families_and_large_starts_occur_by_their_shares():
    assert sum(family.share for family in FAMILIES.values()) == pytest.approx(1)
    rng, draws = random.Random(3), 6000
    examples = [arithmetic_example(rng) for _ in range(draws)]
    families = Counter(example.family for example in examples)
    large = sum(int(re.search(r"\d+", read(example.question)).group()) > 30 for example in examples)
    shares = {name: family.share for name, family in FAMILIES.items()}
    for count, share in [(families[name], shares[name]) for name in shares] + [(large, LARGE_SHARE)]:
        assert abs(count - draws * share) <= 4 * sqrt(draws * share * (1 - share))


def test_templated_examples_are_those_of_the_configuration_each_with_solutions_of_its_kind():
    told = yaml.safe_load(options_of("template")["prompt_augmentation_demo"])["templates"]
    assert {name: f"{text} <sep>" for name, (text, _) in TEMPLATES.items()} == {
        name: template["format"] for name, template in told.items()
    }
    rng, draws, tokenizer = random.Random(6), 2000, build_tokenizer()
    counts = Counter()
    for _ in range(draws):
        question, response, _ = templated_example(rng)
        name = {"Compute": "compute", "Count": "count"}.get(question.partition(":")[0])
        name = name or ("steps" if question.endswith(" = ?") else "plain")
        counts[name] += 1
        assert tokenizer.unk_token not in tokenizer.tokenize(f"{question} {response}")
        assert (name == "compute") <= response.startswith("####")
        if name == "count" and "*" not in response and re.search(r"-.*\+", response.partition("####")[0]):
            additions = [int(number) for number in re.findall(r"\+ (\d+)", response)]
            assert int(response.split()[0]) + sum(additions) > 99, "else additions come first"
        if name == "steps":
            assert not response.startswith("####")
    for name in TEMPLATES:
        assert abs(counts[name] - draws / 4) < 4 * sqrt(draws * 3 / 16)


def test_families_that_are_never_trained_use_no_new_word():
    rng = random.Random(4)
    said = {True: set(), False: set()}
    for family in FAMILIES.values():
        for _ in range(1000):
            said[family.share > 0].update(words(phrase(sample_problem(rng, (2, 3), (2, 60)), family, rng)))
    assert said[False] < said[True]
    assert said[True] | {"=", "####"} == set(arithmetic_vocabulary())


@pytest.mark.parametrize(("regime", "expected"), [("mixed", 5), ("hard", 4)])
def test_without_a_number_every_other_family_tells_the_question(regime, expected):
    for group in ArithmeticSource(regime=regime, size=12, num_rephrasings=None).load():
        families = group.metadata["rephrasing_families"]
        assert len(set(families) - {group.metadata["family"]}) == len(group.rephrasings) == expected


def test_arguments_that_cannot_be_met_are_refused():
    with pytest.raises(ValueError, match=r"`split` to be one of train, .* but got 'testing'"):
        ArithmeticSource("testing")
    with pytest.raises(ValueError, match="`regime` to be one of mixed, hard but got 'easy'"):
        ArithmeticSource(regime="easy")
    with pytest.raises(ValueError, match="`num_rephrasings` to be at most 5"):
        ArithmeticSource(num_rephrasings=6)
    with pytest.raises(ValueError, match="`size` to be at most 5000 but got 5001"):
        ArithmeticSource(size=5001)
