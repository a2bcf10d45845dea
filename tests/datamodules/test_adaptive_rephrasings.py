"""Rephrasings by running success rate: the rule, and who hears of what."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tagrpo.datamodules import questions
from tagrpo.datamodules.adaptive_rephrasings import AdaptiveRephrasings, uniform_probability
from tagrpo.datamodules.questions import QuestionDataModule
from tagrpo.datamodules.sources.arithmetic import ArithmeticSource
from tagrpo.datamodules.templates import PlainTemplate
from tagrpo.starter import starter_path


@pytest.mark.parametrize("samples", [1, 2, 5, 8])
def test_the_chance_of_uniform_responses_is_that_of_all_outcomes_together(samples):
    for eighths in range(9):
        rate = Fraction(eighths, 8)
        chance = Fraction(0)
        for outcome in product((0, 1), repeat=samples):
            if len(set(outcome)) == 1:
                chance += rate ** sum(outcome) * (1 - rate) ** (samples - sum(outcome))
        assert uniform_probability(float(rate), samples) == pytest.approx(float(chance), abs=1e-15)


def test_rephrasings_go_where_the_original_is_likely_to_be_uniform():
    # G = 8, after one batch with c right: (c/8)^8 + (1 − c/8)^8 is 1, .344, .100, .024, .008, … of the way from 0 to 3.
    counts = []
    for right in range(9):
        adaptive = AdaptiveRephrasings(low=0, high=3, samples=8)
        adaptive.update("q", right / 8)
        counts.append(adaptive.count("q", available=3))
    assert counts == [3, 1, 0, 0, 0, 0, 0, 1, 3]
    # From 1 to 6: 1 + 5 · (1, .344, .1001, .024, …) = 6, 2.72, 1.5006, 1.12, …, rounded to the nearest.
    adaptive = AdaptiveRephrasings(low=1, high=6, samples=8)
    for right, expected in ((0, 6), (1, 3), (2, 2), (3, 1), (4, 1), (7, 3), (8, 6)):
        adaptive.rates["q"] = right / 8
        assert adaptive.count("q", available=9) == expected
        assert adaptive.count("q", available=1) == 1, "no more than there are"


def test_a_question_that_was_never_seen_gets_all():
    adaptive = AdaptiveRephrasings(low=0, high=3, samples=8)
    adaptive.update("other", 0.5)
    assert (adaptive.count("q", 3), adaptive.count("q", 2), adaptive.count("other", 3)) == (3, 2, 0)


def test_the_running_rate_is_an_exponential_average_that_starts_with_the_first():
    rates, decay = [1.0, 0.0, 0.25, 1.0, 0.5], 0.7
    adaptive = AdaptiveRephrasings(decay=decay)
    for rate in rates:
        adaptive.update("q", rate)
    # Σ weight · rate with weights decay^4, then decay^(4−i) (1 − decay).
    weights = [decay**4, *((1 - decay) * decay ** (4 - i) for i in range(1, 5))]
    assert sum(weights) == pytest.approx(1)
    assert adaptive.rates["q"] == pytest.approx(sum(w * r for w, r in zip(weights, rates, strict=True)))


def test_the_state_is_the_rates():
    one, other = AdaptiveRephrasings(), AdaptiveRephrasings()
    one.update("q", 0.3)
    other.load_state_dict(one.state_dict())
    one.update("q", 1.0)
    assert other.rates == {"q": 0.3}, "a copy"


def test_options_and_rates_out_of_range_are_refused():
    for options in ({"low": -1}, {"low": 4, "high": 3}, {"samples": 0}, {"decay": 1.5}):
        with pytest.raises(ValueError, match="Expected"):
            AdaptiveRephrasings(**options)
    with pytest.raises(ValueError, match="between 0 and 1 for question 'q'"):
        AdaptiveRephrasings().update("q", float("nan"))


# ------------------------------------------------------------------ in the data module


def make_datamodule(**options):
    options = {
        "train": ArithmeticSource(size=8, num_rephrasings=3), "evaluation": {}, "tokenizer": str(starter_path()),
        "template": PlainTemplate("{question} <sep>"), "batch_size": 4, "num_rephrasings": 3, "samples_per_prompt": 8,
        "adaptive_rephrasings": AdaptiveRephrasings(low=0, high=3, samples=8), "shuffle": False, **options,
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
    datamodule.observe(batch)
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
    datamodule = make_datamodule(adaptive_rephrasings=None)
    loader = datamodule.train_dataloader()
    ids = [group.id for group in next(iter(loader)).groups]
    observed(datamodule, make_batch, [[[1.0, 0.0]]] * 4, ids)
    assert datamodule.state_dict() == {}
    assert all(prompts_per_question(batch) == [4] * 4 for batch in loader)


def test_replayed_successes_are_no_success_of_the_policy(make_batch):
    datamodule = make_datamodule()
    batch = make_batch([[[0.0, 0.0, 1.0]], [[1.0]]])
    batch.rollouts = replace(batch.rollouts, replayed=torch.tensor([False, False, True, True]))
    datamodule.observe(batch)
    assert datamodule.adaptive_rephrasings.rates == {"q0": 0.0}


def test_every_rank_hears_of_every_question(make_batch, monkeypatch):
    shares = {0: ([[[1.0, 0.0]], [[1.0, 1.0]]], ["a", "b"]), 1: ([[[0.0, 0.0]]], ["c"])}
    sent = []
    with monkeypatch.context() as patch:
        patch.setattr(questions, "gather_objects", lambda rates: sent.append(rates) or [rates])
        for correct, ids in shares.values():
            observed(make_datamodule(), make_batch, correct, ids)
    ranks = []
    for correct, ids in shares.values():
        monkeypatch.setattr(questions, "gather_objects", lambda rates: sent)
        ranks.append(make_datamodule())
        observed(ranks[-1], make_batch, correct, ids)
    assert ranks[0].adaptive_rephrasings.rates == ranks[1].adaptive_rephrasings.rates == {"a": 0.5, "b": 1.0, "c": 0.0}


def test_rates_travel_with_the_data_modules_state(make_batch):
    one, other = make_datamodule(), make_datamodule()
    observed(one, make_batch, [[[1.0, 0.0]]], ["a"])
    other.load_state_dict(one.state_dict())
    assert other.adaptive_rephrasings.rates == {"a": 0.5}
    other.load_state_dict({})  # the checkpoint of a run with a fixed number
    make_datamodule(adaptive_rephrasings=None).load_state_dict(one.state_dict())


@given(
    st.integers(0, 5), st.integers(0, 5), st.integers(1, 16), st.lists(st.floats(0, 1), max_size=6), st.integers(0, 9)
)
def test_a_count_lies_between_its_bounds_and_is_the_same_for_either_verdict(low, more, samples, rates, available):
    one, other = (AdaptiveRephrasings(low, low + more, samples) for _ in range(2))
    for rate in rates:
        one.update("q", rate)
        other.update("q", 1 - rate)
    assert min(low, available) <= one.count("q", available) <= min(low + more, available)
    assert abs(one.count("q", available) - other.count("q", available)) <= 1, "rounding apart"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1)), max_size=12), st.integers(0, 12))
def test_rates_go_on_from_any_split(updates, at):
    whole, first, second = AdaptiveRephrasings(), AdaptiveRephrasings(), AdaptiveRephrasings()
    for update in updates:
        whole.update(*update)
    for update in updates[:at]:
        first.update(*update)
    second.load_state_dict(first.state_dict())
    for update in updates[at:]:
        second.update(*update)
    assert second.state_dict() == whole.state_dict()
