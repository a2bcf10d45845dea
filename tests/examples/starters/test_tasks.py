"""Supervised examples: true, from the training split, in the shares of their families."""

from __future__ import annotations

import random
import re
import zlib
from collections import Counter
from itertools import product
from math import sqrt

import pytest
import yaml

from examples.starters.arithmetic import (
    TEMPLATES,
    arithmetic_example,
    arithmetic_vocabulary,
    build_tokenizer,
    solution,
    templated_example,
    words,
)
from examples.starters.countdown import countdown_example, countdown_vocabulary
from examples.starters.parts import LARGE_SHARE, build_answer_tokenizer, prompt_text
from examples.starters.shortest_path import shortest_path_example, shortest_path_vocabulary
from tagrpo.lab.tasks.arithmetic.source import FAMILIES, Operation, Problem, phrase, sample_problem
from tagrpo.settings.methods import options_of
from tests.lab.tasks.arithmetic.test_source import read
from tests.lab.tasks.test_generated import REGIMES, SPLITS, TASKS, asked, every_task

pytestmark = pytest.mark.pages

EXAMPLES = {"countdown": countdown_example, "shortest_path": shortest_path_example}
VOCABULARIES = {"countdown": countdown_vocabulary, "shortest_path": shortest_path_vocabulary}


def test_supervised_problems_come_from_the_training_buckets():
    rng = random.Random(0)
    buckets = Counter(zlib.crc32(read(arithmetic_example(rng).question).encode()) % 10 for _ in range(2000))
    assert set(buckets) == set(range(6))


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


@every_task
def test_supervised_examples_are_correct_come_from_training_and_occur_by_their_shares(task):
    module, source, reward = TASKS[task]
    rng, draws = random.Random(3), 3000
    examples = [EXAMPLES[task](rng) for _ in range(draws)]
    held_out = {
        asked(group.question)
        for split, regime in product(SPLITS[1:], REGIMES)
        for group in source(split, regime, 300, 0).load()
    }
    assert not held_out & {asked(example.question) for example in examples}
    families = Counter(example.family for example in examples)
    for name, family in module.FAMILIES.items():
        assert abs(families[name] - draws * family.share) <= 4 * sqrt(
            draws * family.share * (1 - family.share)
        )
    for example in examples:
        assert reward(example.response, example.response).correct


@every_task
def test_one_supervised_example_in_twenty_is_as_large_as_the_test_of_size(task):
    rng, draws = random.Random(4), 3000
    large = sum(
        bool(re.search(r"[a-f]6|f[1-6]", example.question))
        if task == "shortest_path"
        else max(asked(example.question)[1]) > 15
        for example in (EXAMPLES[task](rng) for _ in range(draws))
    )
    # Of large grids nine in ten name a cell that small ones don't have.
    assert 0.03 < large / draws < 0.065


@every_task
def test_the_tokenizer_of_the_vocabulary_gives_every_text_back(task):
    source = TASKS[task][1]
    tokenizer = build_answer_tokenizer(VOCABULARIES[task]())
    rng = random.Random(5)
    texts = [text for _ in range(300) for text in EXAMPLES[task](rng)[:2]]
    for split, regime in product(SPLITS, REGIMES):
        texts += [
            prompt_text(q) for g in source(split, regime, 20).load() for q in (g.question, *g.rephrasings)
        ]
    unknown = tokenizer.convert_tokens_to_ids("<unk>")
    for text in texts:
        ids = tokenizer(text).input_ids
        assert unknown not in ids, text
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


@every_task
def test_only_the_stop_token_is_left_out_when_an_answer_is_decoded(task):
    # Else other tokens than those that are summed over would read as the same answer.
    tokenizer = build_answer_tokenizer(VOCABULARIES[task]())
    assert tokenizer.all_special_ids == [tokenizer.eos_token_id]
    words = [tokenizer.decode([token], skip_special_tokens=True) for token in range(len(tokenizer))]
    assert words.count("") == 1
    assert len(set(words)) == len(tokenizer)
