"""Products in several wordings: every wording asks for the answer, and no product is in two of what must be apart."""

from __future__ import annotations

import re

import pytest

from tagrpo.lab.tasks.multiplication import FAMILIES, TRAINED, UNSEEN, MultiplicationSource

SIZES = {"train": 54, "validation": 15, "test_id": 36, "test_phrasing": 36}


def load(split, **options):
    return MultiplicationSource(split, size=SIZES[split], num_rephrasings=7, **options).load()


def factors(group):
    return tuple(sorted(group.metadata["factors"]))


@pytest.mark.parametrize("split", SIZES)
def test_every_wording_names_both_factors_and_the_answer_is_their_product(split):
    for group in load(split):
        for text in (group.question, *group.rephrasings):
            first, second = map(int, re.findall(r"\d+", text))
            assert (str(first * second),) == group.answer
            assert tuple(sorted((first, second))) == factors(group)
            assert 2 <= min(first, second) <= max(first, second) <= 15


def test_splits_share_no_product_but_the_tests_which_ask_for_the_same_ones():
    asked = {split: {factors(group) for group in load(split)} for split in SIZES}
    assert asked["test_id"] == asked["test_phrasing"]
    for one, other in (("train", "validation"), ("train", "test_id"), ("validation", "test_id")):
        assert not asked[one] & asked[other]
    assert sum(len(asked[split]) for split in ("train", "validation", "test_id")) == 14 * 15 / 2


def test_originals_of_the_test_of_phrasing_are_asked_in_wordings_that_training_lacks():
    families = {split: {group.metadata["family"] for group in load(split)} for split in SIZES}
    assert families["test_phrasing"] == set(UNSEEN)
    assert families["train"] == families["test_id"] == set(TRAINED) == set(FAMILIES) - set(UNSEEN)
    for split in SIZES:
        for group in load(split):
            assert set(group.metadata["rephrasing_families"]) <= set(TRAINED) - {group.metadata["family"]}


@pytest.mark.parametrize("split", SIZES)
def test_more_products_than_there_are_are_refused_with_their_number(split):
    with pytest.raises(ValueError, match=f"`size`.*{SIZES[split]}.*{split}"):
        MultiplicationSource(split, size=SIZES[split] + 1).load()


def test_factors_reach_to_the_largest_that_is_set():
    groups = MultiplicationSource("train", size=400, num_rephrasings=0, largest_factor=99).load()
    assert {factor for group in groups for factor in factors(group)} >= {2, 50, 99}
    assert max(factor for group in groups for factor in factors(group)) == 99
    with pytest.raises(ValueError, match="`largest_factor`.*1"):
        MultiplicationSource(largest_factor=1)
