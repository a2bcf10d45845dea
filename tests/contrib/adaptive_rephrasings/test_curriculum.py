"""Rephrasings by running success rate: the rule, and what of it reaches a batch."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagrpo.contrib.adaptive_rephrasings.curriculum import AdaptiveRephrasings, running_rate
from tagrpo.datamodules.lightning.questions import QuestionDataModule
from tagrpo.datamodules.memory import Record, Visit
from tagrpo.datamodules.templates import PlainTemplate
from tagrpo.lab.tasks.arithmetic import ArithmeticSource
from tagrpo.starter import starter_path


@pytest.mark.parametrize("samples", [1, 2, 5, 8])
def test_the_chance_of_uniform_responses_is_that_of_all_outcomes_together(samples):
    for eighths in range(9):
        rate = Fraction(eighths, 8)
        chance = Fraction(0)
        for outcome in product((0, 1), repeat=samples):
            if len(set(outcome)) == 1:
                chance += rate ** sum(outcome) * (1 - rate) ** (samples - sum(outcome))
        adaptive = AdaptiveRephrasings(low=0, high=None, samples=samples, decay=0.0)
        record = Record(visits=[Visit((8,), (eighths,))])
        assert adaptive.count(record, available=10**9) == pytest.approx(float(chance) * 10**9, abs=0.51)


def visited(*right):
    """A question whose original was sampled eight times in each visit; what its rephrasings answered does not count."""
    return Record(visits=[Visit((8, 8), (count, 8 - count)) for count in right])


def test_rephrasings_go_where_the_original_is_likely_to_be_uniform():
    # G = 8, after one batch with c right: (c/8)^8 + (1 − c/8)^8 is 1, .344, .100, .024, .008, … of the way from 0 to 3.
    counts = []
    for right in range(9):
        adaptive = AdaptiveRephrasings(low=0, high=3, samples=8)
        counts.append(adaptive.count(visited(right), available=3))
    assert counts == [3, 1, 0, 0, 0, 0, 0, 1, 3]
    # From 1 to 6: 1 + 5 · (1, .344, .1001, .024, …) = 6, 2.72, 1.5006, 1.12, …, rounded to the nearest.
    adaptive = AdaptiveRephrasings(low=1, high=6, samples=8)
    for right, expected in ((0, 6), (1, 3), (2, 2), (3, 1), (4, 1), (7, 3), (8, 6)):
        assert adaptive.count(visited(right), available=9) == expected
        assert adaptive.count(visited(right), available=1) == 1, "no more than there are"


def test_the_running_rate_is_an_exponential_average_that_starts_with_the_first():
    right, decay = [8, 0, 2, 8, 4], 0.7
    record = Record(visits=[Visit((4, 4), (min(r, 4), max(r - 4, 0))) for r in right])
    # Σ weight · rate with weights decay^4, then decay^(4−i) (1 − decay).
    weights = [decay**4, *((1 - decay) * decay ** (4 - i) for i in range(1, 5))]
    assert sum(weights) == pytest.approx(1)
    originals = sum(w * min(r, 4) / 4 for w, r in zip(weights, right, strict=True))
    assert running_rate(record, decay) == pytest.approx(originals)
    assert running_rate(Record(), decay) is None
    assert running_rate(Record(visits=[Visit((0, 3), (0, 3))]), decay) is None


def test_a_question_that_was_never_seen_gets_all():
    adaptive = AdaptiveRephrasings(low=0, high=3, samples=8)
    assert (adaptive.count(Record(), 3), adaptive.count(Record(), 2), adaptive.count(visited(4), 3)) == (
        3,
        2,
        0,
    )


def test_the_decay_is_the_weight_of_the_past():
    # After 0 of 8 and 4 of 8 the rate is ½ (1 − decay): 0.5, 0.125 and 0, with chances .008, .344 and 1.
    counts = [AdaptiveRephrasings(decay=decay).count(visited(0, 4), 3) for decay in (0.0, 0.75, 1.0)]
    assert counts == [0, 1, 3]


def test_options_out_of_range_are_refused():
    for options in ({"low": -1}, {"low": 4, "high": 3}, {"samples": 0}, {"decay": 1.5}):
        with pytest.raises(ValueError, match="Expected"):
            AdaptiveRephrasings(**options)


# ------------------------------------------------------------------ in the data module


def make_datamodule(**options):
    options = {
        "train": ArithmeticSource(size=8, num_rephrasings=3), "evaluation": {}, "tokenizer": str(starter_path()),
        "template": PlainTemplate("{question} <sep>"), "batch_size": 4, "num_rephrasings": 3, "samples_per_prompt": 8,
        "curriculum": AdaptiveRephrasings(low=0, high=3, samples=8), "shuffle": False, **options,
    }  # fmt: skip
    datamodule = QuestionDataModule(**options)
    datamodule.setup("fit")
    return datamodule


def prompts_per_question(batch):
    """Number of prompts of each question."""
    return [sum(p.question == row for p in batch.prompts) for row in range(len(batch.groups))]


def observed(datamodule, make_batch, correct, ids):
    batch = make_batch(correct)
    batch.groups = [group._replace(id=id) for group, id in zip(batch.groups, ids, strict=True)]
    datamodule.memory.remember(batch)
    return batch


def test_the_next_epoch_asks_as_many_rephrasings_as_the_last_one_called_for(make_batch):
    datamodule = make_datamodule()
    loader = datamodule.train_dataloader()
    epoch = list(loader)
    assert [prompts_per_question(batch) for batch in epoch] == [[4] * 4] * 2
    ids = [group.id for group in epoch[0].groups]
    half, seven, none = [1.0, 0.0] * 4, [1.0] * 7 + [0.0], [0.0] * 8
    # What the rephrasings answered does not count.
    observed(datamodule, make_batch, [[half, none], [seven, none], [none, half], [[1.0] * 8]], ids)
    first, second = list(loader)
    assert [group.id for group in first.groups] == ids
    assert prompts_per_question(first) == [1, 2, 4, 4]
    assert prompts_per_question(second) == [4] * 4
    assert [len(group.rephrasings) for group in first.groups] == [0, 1, 3, 3]
    kept = first.groups[1].rephrasings
    assert kept == epoch[0].groups[1].rephrasings[:1], "the first ones"


def test_evaluation_and_a_fixed_number_know_nothing_of_rates(make_batch):
    datamodule = make_datamodule(curriculum=None)
    loader = datamodule.train_dataloader()
    ids = [group.id for group in next(iter(loader)).groups]
    observed(datamodule, make_batch, [[[1.0, 0.0]]] * 4, ids)
    assert not datamodule.needs_memory
    assert set(datamodule.state_dict()) == {"tokenizer"}
    assert all(prompts_per_question(batch) == [4] * 4 for batch in loader)


@given(
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(1, 16),
    st.lists(st.integers(0, 8), max_size=6),
    st.integers(0, 9),
)
def test_a_count_lies_between_its_bounds_and_is_the_same_for_either_verdict(
    low, more, samples, correct, available
):
    adaptive = AdaptiveRephrasings(low, low + more, samples)
    one, other = (
        adaptive.count(Record(visits=[Visit((8,), (count,)) for count in counts]), available)
        for counts in (correct, [8 - count for count in correct])
    )
    assert min(low, available) <= one <= min(low + more, available)
    assert abs(one - other) <= 1, "rounding apart"


def test_without_a_highest_number_all_that_there_are_may_be_used():
    curriculum = AdaptiveRephrasings(low=1, high=None, samples=8)
    assert [curriculum.count(Record(), available) for available in (0, 2, 5)] == [0, 2, 5]
