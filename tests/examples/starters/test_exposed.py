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

from examples.starters.exposed import BRANCHES, KINDS, REGIME, TASKS, ExposedConfig, Exposure, draw_example, make

every_task = pytest.mark.parametrize("task", TASKS)


@every_task
def test_shares_are_those_of_the_exposure_and_the_rest_is_the_base(task):
    shares = Exposure(original=0.1, kinds={"wording": 0.3, "hint": 0.15}).shares(TASKS[task])
    (original,) = TASKS[task].source.splits["train"].originals[REGIME]
    assert sum(shares.values()) == pytest.approx(1)
    assert shares[original] == 0.1
    assert shares["hint_2"] == pytest.approx(0.05)
    wordings = [name for name in TASKS[task].source.rephrasings[REGIME] if name in shares and "hint" not in name]
    assert [shares[name] for name in wordings] == pytest.approx([0.1] * 3)
    assert sum(shares[name] for name in TASKS[task].base) == pytest.approx(0.45)
    assert not {original, *wordings} & TASKS[task].base.keys()


@every_task
def test_examples_are_correct_of_the_training_split_and_occur_by_their_shares(task):
    shares, rng, draws = BRANCHES["kinds"].shares(TASKS[task]), random.Random(0), 1500
    examples = [draw_example(TASKS[task], shares, rng) for _ in range(draws)]
    verifier = TASKS[task].verifier()
    assert all(verifier(example.response, example.response).correct for example in examples)
    counts = Counter(example.family for example in examples)
    for name, share in shares.items():
        assert abs(counts[name] - draws * share) <= 4 * sqrt(draws * share * (1 - share))
    held_out = {g.question for g in TASKS[task].source("test_id", REGIME, 300, 0).load()}
    assert not held_out & {example.question for example in examples}


def test_the_gap_grows_with_the_share_of_the_wordings_while_that_of_the_original_stays():
    gaps = [BRANCHES[name] for name in BRANCHES if name.startswith("gap")]
    assert {exposure.original for exposure in gaps} == {gaps[0].original}
    wordings = [exposure.kinds["wording"] for exposure in gaps]
    assert wordings == sorted(set(wordings))
    assert wordings[0] / 3 <= gaps[0].original  # each of the three is no more frequent than the original
    assert set(BRANCHES["kinds"].kinds) == set(KINDS)


@every_task
def test_a_starter_is_made_twice_the_same_and_knows_every_word(task, tmp_path):
    torch.set_num_threads(1)
    config = ExposedConfig(task=task, steps=2, branch_steps=2, batch_size=4, validation_questions=4)
    for name in ("one", "two"):
        make(tmp_path / name, config, {"kinds": BRANCHES["kinds"]})
    weights = [load_file(tmp_path / name / "kinds" / "model.safetensors") for name in ("one", "two")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    base = load_file(tmp_path / "one" / "base" / "model.safetensors")
    assert not all(torch.equal(base[name], weights[0][name]) for name in base)
    report = json.loads((tmp_path / "one" / "kinds" / "starter.json").read_text())
    assert set(report["success"]) == {"original", *KINDS}
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "one" / "kinds")
    for split in ("train", "test_phrasing"):
        for group in TASKS[task].source(split, REGIME, 60, num_rephrasings=None).load():
            for text in (group.question, *group.rephrasings, *group.answer):
                assert tokenizer.unk_token_id not in tokenizer(text).input_ids, text
