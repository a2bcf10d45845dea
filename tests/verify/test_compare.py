"""Comparisons: verdicts, what conventions are worth, and faults planted in ours."""

from __future__ import annotations

import pytest
import torch

from tagrpo.modules.advantages.group import GroupAdvantage
from tagrpo.modules.experience import Experience, MicroBatch
from tagrpo.verify.adapters import Answer
from tagrpo.verify.batch import small_batch
from tagrpo.verify.compare import compare
from tagrpo.verify.methods import composed, conventions_between, switched
from tagrpo.verify.models import models_for
from tagrpo.verify.ours import run_ours
from tagrpo.verify.outcome import difference

SIZES = (2, 3, 4, 6, 8, 12)


@pytest.fixture(scope="module")
def small():
    return models_for(small_batch(), None, 1.0)


@pytest.fixture(scope="module")
def as_trl(small):
    """A stand-in for TRL's answer: the unbroken update with TRL's conventions."""
    names = ("grpo", "dr_grpo", "rloo")
    return Answer(
        "1.16.0", {name: run_ours(composed(name, "trl"), *small) for name in names}, {"kl_cov": "has none"}
    )


def compared(method, answer, small, conventions="trl"):
    return compare("trl", method, answer, *small, conventions=conventions, micro_batch_rows=SIZES)


def test_verdicts_name_the_settings_that_make_both_equal(as_trl, small):
    found = compared("grpo", as_trl, small)
    assert found.conventional.equal
    assert not found.default.equal
    assert set(found.verdict.split()) == {"equal", "with", "advantage.epsilon=0.0001", "loss.kl_ratio=true"}
    worths = {worth.convention.setting: worth.gradient for worth in found.worths}
    assert 1e-6 < worths["loss.kl_ratio"] < 0.01
    assert 1e-5 < worths["advantage.epsilon"] < 0.01
    assert worths["loss.entropy_aggregation"] == 0.0
    assert compared("dr_grpo", as_trl, small).verdict == "equal"
    assert compared("kl_cov", as_trl, small).verdict == "has none"
    assert compared("ta_grpo", as_trl, small).verdict == "only here"
    assert "loss.ratio=product" in compared("rloo", as_trl, small).verdict


def test_without_the_conventions_the_difference_is_explained_by_them(as_trl, small):
    found = compared("grpo", as_trl, small, conventions="none")
    assert not found.conventional.equal
    assert found.ours == []
    causes = " ".join(cause for finding in found.theirs for cause in finding.causes)
    assert "epsilon 0.0001" in causes
    assert "times the ratio" in causes


def test_conventions_are_switched_one_at_a_time(small):
    ours, theirs = composed("rloo", "none"), composed("rloo", "trl")
    between = {each.setting: each.theirs for each in conventions_between(ours, theirs)}
    assert between["loss.ratio"] == "product"
    assert between["advantage.epsilon"] == 1e-4
    assert conventions_between(ours, ours) == []
    every = switched(ours, conventions_between(ours, theirs))
    assert difference(run_ours(every, *small), run_ours(theirs, *small)).gradient == 0.0


def fault_of_bessel(monkeypatch):
    scaled = GroupAdvantage._scaled

    def biased(self, *arguments):
        self.unbiased = False
        return scaled(self, *arguments)

    monkeypatch.setattr(GroupAdvantage, "_scaled", biased)
    return "without Bessel's correction"


def fault_of_normaliser(monkeypatch):
    """Each micro-batch of four responses takes its own mean; the update then takes the mean of these."""
    from tagrpo.modules.policy import logprobs

    def parts(prompts, prompt, chosen, *_):
        return list(torch.arange(len(chosen)).split(4))

    monkeypatch.setattr(logprobs, "plan_micro_batches", parts)
    prepare = MicroBatch.__post_init__

    def own_totals(self):
        prepare(self)
        self.totals = {"responses": len(self.lengths) * 6.0, "tokens": float(self.lengths.sum()) * 6}

    monkeypatch.setattr(MicroBatch, "__post_init__", own_totals)
    return "a normaliser per micro-batch of 4 responses"


def fault_of_prompt(monkeypatch):
    prepare = Experience.__init__

    def at_the_original(self, rollouts, anchor):
        prepare(self, rollouts, "original")

    monkeypatch.setattr(Experience, "__init__", at_the_original)
    return "ratios under the wrong prompt: the original question"


def fault_of_the_next_prompt(monkeypatch):
    prepare = Experience.__init__

    def shifted(self, rollouts, anchor):
        prepare(self, rollouts, anchor)
        self.prompt = (self.prompt + 1) % len(self.prompts)

    monkeypatch.setattr(Experience, "__init__", shifted)
    return "ratios under the wrong prompt: that of the next group"


FAULTS = {
    "Bessel": (fault_of_bessel, "grpo"),
    "normaliser": (fault_of_normaliser, "dapo"),
    "prompt": (fault_of_prompt, "grpo"),
    "next prompt": (fault_of_the_next_prompt, "dapo"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_planted_in_ours_is_named(name, small, monkeypatch):
    plant, method = FAULTS[name]
    answer = Answer("1.16.0", {method: run_ours(composed(method, "trl"), *small)}, {})
    assert compared(method, answer, small).verdict.startswith("equal with")
    said = plant(monkeypatch)
    found = compared(method, answer, small)
    assert not found.conventional.equal
    assert any(said in cause for finding in found.ours for cause in finding.causes), found.ours
    assert found.theirs == []
    assert said in found.verdict
