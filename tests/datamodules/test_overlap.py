"""Overlap of test and training questions, on constructed texts and on the real sets."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tagrpo.datamodules.overlap import Index, find_overlaps, words
from tagrpo.types import QuestionGroup

DATA = Path(__file__).parents[2].parent / "shared" / "data"
TEXT = "A bag holds 3 red and 4 blue balls. Two balls are drawn at random. What is the probability that both are red?"


def group(text, id="x", *rephrasings):
    return QuestionGroup(id, text, rephrasings, ("1",))


def only(train, test, **options):
    return find_overlaps(train, {"test": [group(test)]}, **options)["test"]


def test_a_copy_is_found_whatever_its_formatting():
    copies = [
        TEXT.upper(),
        TEXT.replace(" 3 ", " $3$ ").replace(".", ";\n"),
        TEXT.replace("at random", r"\textbf{at random}"),
        TEXT.replace(" ", "\u00a0"),
    ]
    for copy in copies:
        assert only([group("What is 1 + 1?", "other"), group(copy, "copy")], TEXT) == [
            ("x", "copy", 1.0, True)
        ]


def test_a_light_rewording_is_near_and_other_numbers_are_told():
    (near,) = only([group(TEXT.replace("drawn at random", "taken out"), "near")], TEXT)
    assert 0.5 < near.similarity < 1
    assert near.same_numbers
    (pattern,) = only([group(TEXT.replace("4", "5"), "mould")], TEXT)
    assert 0.5 < pattern.similarity < 1
    assert not pattern.same_numbers


def test_similarity_is_the_share_of_the_test_questions_ngrams():
    # Ten words have eight 3-grams; the first five of them are in the training question, with three of these grams.
    test, train = "a b c d e f g h i j", "z a b c d e z"
    (overlap,) = only([group(train, "t")], test, n=3, threshold=0.3)
    assert overlap.similarity == 0.375
    assert only([group(train, "t")], test, n=3, threshold=0.4) == []


def test_the_most_similar_training_question_is_named_and_rephrasings_count():
    train = [group(TEXT.replace("red", "green"), "far"), group("Something else altogether.", "near", TEXT)]
    (overlap,) = only(train, TEXT)
    assert (overlap.train, overlap.similarity) == ("near", 1.0)


def test_short_questions_overlap_with_the_same_words_alone():
    train = [
        group("Compute $2 + 3$.", "same"),
        group("Now compute 2 + 3 and then double what you have got.", "in"),
    ]
    assert [overlap.train for overlap in only(train, "compute 2+3")] == ["same"]
    assert only(train[1:], "compute 2+3") == []
    assert only([group("…", "empty")], "…") == [], "texts without a word are not alike"


def test_splits_are_told_apart_and_keep_the_order_of_their_questions():
    train = [group(TEXT, "t")]
    tests = {"one": [group("Nothing of it.", "a"), group(TEXT, "b")], "two": [], "three": [group(TEXT, "b")]}
    found = find_overlaps(train, tests)
    assert {split: [overlap.test for overlap in overlaps] for split, overlaps in found.items()} == {
        "one": ["b"],
        "two": [],
        "three": ["b"],
    }


TEXTS = st.lists(st.lists(st.sampled_from("abcde"), max_size=9).map(" ".join), max_size=6)


@given(TEXTS, TEXTS, st.sampled_from([1, 2, 3]), st.sampled_from([0.3, 0.5, 0.667, 1.0]))
def test_the_similarity_is_the_highest_of_all_pairs(train, test, n, threshold):
    def grams(text):
        found = words(text)
        return {found[i : i + n] for i in range(max(1, len(found) - n + 1))} if found else set()

    def share(text, other):
        return round(len(grams(text) & grams(other)) / max(len(grams(text)), 1), 3)

    found = find_overlaps(
        [group(text, text) for text in train], {"test": [group(t, t) for t in test]}, n, threshold
    )
    expected = [(text, max((share(text, other) for other in train), default=0)) for text in test]
    assert [(o.test, o.similarity) for o in found["test"]] == [
        (text, best) for text, best in expected if best >= threshold
    ]
    assert all(share(overlap.test, overlap.train) == overlap.similarity for overlap in found["test"])


@pytest.mark.parametrize(("kinds", "alike"), [(20, 100), (3, 0), (1, 0)])
def test_a_layout_that_many_questions_have_does_not_count(kinds, alike):
    def asked(start, count):
        return [
            group(
                " ".join(
                    f"{chr(97 + i % kinds)}{chr(97 + word % 26)}{chr(97 + word // 26)}" for word in range(60)
                )
                + " ".join(f" {i} {word}" for word in "abcdefghij"),
                str(i),
            )
            for i in range(start, start + count)
        ]

    found = find_overlaps(asked(0, 300), {"test": asked(1000, 100)})["test"]
    assert len(found) == alike, "one that a third of them have does not; one that a twentieth has does"


def made_from_layouts(count, layouts, values, seed):
    """Questions of 40 words, three of which vary."""
    fixed = random.Random(0)
    texts = [
        [f"w{fixed.choice('abcdefgh')}{fixed.choice('abcdefgh')}" for _ in range(40)] for _ in range(layouts)
    ]
    varying = random.Random(seed)
    questions = []
    for number in range(count):
        text = list(texts[number % layouts])
        for place in (8, 20, 33):
            text[place] = str(varying.randrange(values))
        questions.append(group(" ".join(text), f"{seed}-{number}"))
    return questions


def by_comparing_all(train, tests, n=6, threshold=0.5):
    def grams(question):
        text = words(question.question)
        return {text[start : start + n] for start in range(len(text) - n + 1)}

    trained = [grams(question) for question in train]
    holders = Counter(gram for one in trained for gram in one)
    usual = {gram for gram, count in holders.items() if count > max(len(train) / 10, 64)}
    found = []
    for test in tests:
        own = grams(test) - usual
        shared = [len(own & one) for one in trained]
        best = max(range(len(train)), key=lambda row: (shared[row], -row))
        similarity = round(shared[best] / len(own), 3) if own else 0.0
        if similarity >= threshold:
            found.append((test.id, train[best].id, similarity))
    return found


@pytest.mark.parametrize(("layouts", "values"), [(15, 9), (15, 9999), (11, 2), (40, 9)])
def test_questions_from_layouts_overlap_as_when_all_pairs_are_compared(layouts, values):
    train, tests = made_from_layouts(1100, layouts, values, 1), made_from_layouts(40, layouts, values, 2)
    found = find_overlaps(train, {"test": tests})["test"]
    assert [overlap[:3] for overlap in found] == by_comparing_all(train, tests)
    assert found


def test_common_ngrams_are_counted_once_for_each_layout():
    train = [words(question.question) for question in made_from_layouts(2000, 15, 9999, 1)]
    holders = defaultdict(list)
    for row, text in enumerate(train):
        for start in range(len(text) - 5):
            holders[text[start : start + 6]].append(row)
    index = Index(len(train), holders)
    assert len(index.first) == 15, "the work for a question grows with this, not with the texts"
    assert max(map(len, index.having)) <= 15
    assert max(map(len, index.rare.values())) <= 64


@settings(max_examples=50)
@given(st.text(max_size=60))
def test_any_text_is_read_and_a_text_with_words_overlaps_with_itself(text):
    found = only([group(text, "t")], text)
    assert [overlap.similarity for overlap in found] == ([1.0] if words(text) else [])


def test_options_out_of_range_are_refused():
    for options in ({"n": 0}, {"threshold": 0.0}, {"threshold": 1.1}):
        with pytest.raises(ValueError, match="Expected n ≥ 1 and a threshold"):
            find_overlaps([], {}, **options)


def questions(name):
    with (DATA / f"{name}.jsonl").open() as lines:
        return [group(json.loads(line)["problem"], f"{name}-{number}") for number, line in enumerate(lines)]


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the datasets beside the project")
def test_questions_of_olympiadbench_and_math500_stand_in_the_training_set_of_math():
    names = ("amc", "minerva", "olympiadbench", "math500")
    found = find_overlaps(questions("math_train"), {name: questions(name) for name in names})
    assert {name: len(overlaps) for name, overlaps in found.items()} == {
        "amc": 0,
        "minerva": 0,
        "olympiadbench": 6,
        "math500": 40,
    }
    # Read by hand: the same questions; the first has x and y exchanged.
    assert [(overlap.test, overlap.train) for overlap in found["olympiadbench"] if overlap.same_numbers] == [
        ("olympiadbench-326", "math_train-4009"),
        ("olympiadbench-346", "math_train-6864"),
        ("olympiadbench-459", "math_train-4487"),
        ("olympiadbench-462", "math_train-7294"),
        ("olympiadbench-517", "math_train-3443"),
        ("olympiadbench-522", "math_train-4533"),
    ]
    assert sum(overlap.same_numbers for overlap in found["math500"]) == 15
