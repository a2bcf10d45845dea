"""prime-rl's own code against its formulas."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from tests.verify.trainers.exchange import Reference, python_of, rows, run, write

METHODS = {
    "grpo": {},
    "grpo_narrow": {
        "method": "grpo",
        "options": {"dppo_mask_low": 0.005, "dppo_mask_high": 0.005, "kl_tau": 0.3},
    },
    "grpo_with_bonus": {"method": "grpo", "entropy_coefficient": 0.1},
    "gspo": {},
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Folder with what prime-rl made of the batch, and the formulas for it."""
    python = python_of("prime_rl")
    folder = tmp_path_factory.mktemp("prime_rl")
    write(folder / "in", rows(), METHODS)
    run(python, "prime_rl", folder / "in", folder / "out")
    return folder / "out", Reference(folder / "in")


@pytest.mark.parametrize(("entry", "threshold", "kl_tau"), [("grpo", 0.2, 1e-3), ("grpo_narrow", 0.005, 0.3)])
def test_tokens_that_moved_too_far_are_dropped_and_the_squared_log_ratio_is_added(
    ran, entry, threshold, kl_tau
):
    out, reference = ran
    advantages = reference.group_advantages(scale=False)
    terms = []
    dropped = 0
    for advantage, ratio, row, logprobs in zip(
        advantages, reference.ratios, reference.batch, reference.logprobs, strict=True
    ):
        moved = logprobs.detach().exp() - torch.tensor(row["sampled_logprobs"], dtype=torch.float64).exp()
        too_far = moved > threshold if advantage > 0 else moved < -threshold
        dropped += int(too_far.sum())
        terms.append(-torch.where(too_far, 0.0, ratio * advantage) + kl_tau * ratio.log() ** 2)
    assert (dropped > 0) == (threshold < 0.1)
    reference.check(out, entry, reference.token_mean(terms), advantages, 1e-6)


def test_what_prime_rl_does_not_have_is_named(ran):
    out, reference = ran
    methods = json.loads((out / "result.json").read_text())["methods"]
    assert "entropy" in methods["grpo_with_bonus"]["supported"]
    assert "has no gspo" in methods["gspo"]["supported"]
    log_ratios = [ratio.log().detach() for ratio in reference.ratios]
    assert 0 <= methods["grpo"]["metrics"]["is_masked"] <= 1
    expected = np.mean([float((ratio.exp() - ratio - 1).mean()) for ratio in log_ratios])
    assert methods["grpo"]["metrics"]["unmasked_mismatch_kl"] == pytest.approx(expected, abs=1e-6)
