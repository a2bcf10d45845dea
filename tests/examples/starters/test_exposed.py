"""Starters of the regime `reformulated`: what they are trained on, and that a branch is made twice the same."""

from __future__ import annotations

import json
import random
from collections import Counter
from math import sqrt

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from examples.starters.exposed import (
    BRANCHES,
    GAPS,
    KINDS,
    POLICIES,
    REGIME,
    TASKS,
    ExposedConfig,
    Exposure,
    Starters,
    draw_example,
)

pytestmark = pytest.mark.pages

every_task = pytest.mark.parametrize("task", TASKS)


@every_task
def test_shares_are_those_of_the_exposure_and_the_rest_is_the_base(task):
    shares = Exposure(original=0.1, kinds={"wording": 0.3, "hint": 0.15}).shares(TASKS[task])
    (original,) = TASKS[task].source.splits["train"].originals[REGIME]
    assert sum(shares.values()) == pytest.approx(1)
    assert shares[original] == 0.1
    assert shares["hint_2"] == pytest.approx(0.05)
    wordings = [
        name for name in TASKS[task].source.rephrasings[REGIME] if name in shares and "hint" not in name
    ]
    assert [shares[name] for name in wordings] == pytest.approx([0.1] * 3)
    assert sum(shares[name] for name in TASKS[task].base) == pytest.approx(0.45)
    assert not {original, *wordings} & TASKS[task].base.keys()


@every_task
def test_examples_are_correct_of_the_training_split_and_occur_by_their_shares(task):
    shares, rng, draws = BRANCHES["all"].shares(TASKS[task]), random.Random(0), 1500
    examples = [draw_example(TASKS[task], shares, rng) for _ in range(draws)]
    verifier = TASKS[task].verifier()
    assert all(verifier(example.response, example.response).correct for example in examples)
    counts = Counter(example.family for example in examples)
    for name, share in shares.items():
        assert abs(counts[name] - draws * share) <= 4 * sqrt(draws * share * (1 - share))
    held_out = {g.question for g in TASKS[task].source("test_id", REGIME, 300, 0).load()}
    assert not held_out & {example.question for example in examples}


def test_branches_differ_in_the_reformulations_alone():
    assert len({exposure.original for exposure in BRANCHES.values()}) == 1
    assert BRANCHES["low"].kinds == {}
    assert set(BRANCHES["high"].kinds) == {"wording"}
    assert set(BRANCHES["all"].kinds) == set(KINDS)
    assert len(set(BRANCHES["all"].kinds.values())) == 1


TINY = {"steps": 2, "round_steps": 2, "rounds": 3, "batch_size": 4, "validation_questions": 4}


def weights_of(folder):
    return load_file(folder / "model.safetensors")


@every_task
def test_a_starter_is_made_twice_the_same_and_knows_every_word(task, tmp_path):
    torch.set_num_threads(1)
    for name in ("one", "two"):
        Starters(tmp_path / name, ExposedConfig(task=task, **TINY)).folder("all")
    one, two, base = (weights_of(tmp_path / name) for name in ("one/all", "two/all", "one/base"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not all(torch.equal(base[name], one[name]) for name in base)
    report = json.loads((tmp_path / "one" / "all" / "starter.json").read_text())
    assert set(report["success"]) == {"original", *KINDS}
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "one" / "all")
    for split in ("train", "test_phrasing"):
        for group in TASKS[task].source(split, REGIME, 60, num_rephrasings=None).load():
            for text in (group.question, *group.rephrasings, *group.answer):
                assert tokenizer.unk_token_id not in tokenizer(text).input_ids, text


class Known(Starters):
    """Wordings are solved by the square of a weight's value over 10; each round of a branch adds 1 to the value."""

    def success(self, model, groups):
        value = float(model.model.norm.weight[0])
        return {"original": 0.01 * (1 + value), "wording": value**2 / 10}

    def _train(self, model, shares, steps, rate, number=0):
        loss = super()._train(model, shares, steps, rate, number)
        with torch.no_grad():
            wordings = any(name in self.task.source.rephrasings[REGIME] for name in shares)
            model.model.norm.weight[0] = number if wordings else 0.0
        return loss


def test_the_policies_between_solve_wordings_in_equal_steps(tmp_path):
    starters = Known(tmp_path, ExposedConfig(task="countdown", **TINY))
    reports = {name: starters.report(name) for name in [*BRANCHES, *POLICIES]}
    assert [reports[name]["rounds"] for name in BRANCHES] == [2, 2, 2], (
        "0.4 is the first success of 0.28 and more"
    )
    assert [reports[name]["success"]["wording"] for name in GAPS] == pytest.approx(
        [0, 0.07, 0.14, 0.21, 0.28], abs=4e-3
    )
    assert reports["gap2"]["weight"] == pytest.approx((0.14 * 10) ** 0.5 / 2, abs=0.005)
    assert reports["kinds"]["success"]["original"] == pytest.approx(2 * 0.01, abs=1e-4)
    low, high, middle = (weights_of(tmp_path / name) for name in ("low", "high", "gap2"))
    for name in low:
        assert torch.equal(weights_of(tmp_path / "gap0")[name], low[name])
        assert torch.allclose(middle[name], low[name].lerp(high[name], reports["gap2"]["weight"]), atol=1e-6)


def test_a_branch_that_does_not_come_that_far_ends_after_its_rounds(tmp_path):
    starters = Starters(tmp_path, ExposedConfig(task="countdown", **TINY))
    reports = [starters.report(name) for name in BRANCHES]
    assert [report["rounds"] for report in reports] == [3, 3, 3]
    before = tmp_path / "high" / "starter.json"
    stamp = before.stat().st_mtime_ns
    starters.folder("gap4")
    assert before.stat().st_mtime_ns == stamp, "what is there is kept"
