"""NeMo RL's own code against the papers' formulas under NeMo RL's conventions."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from tests.verify.trainers.exchange import Reference, python_of, rows, run, write

METHODS = {
    "grpo": {},
    "grpo_of_the_group": {"method": "grpo", "options": {"use_leave_one_out_baseline": False}},
    "grpo_with_divergence": {"method": "grpo", "kl_coefficient": 0.3},
    "grpo_with_dual_clip": {"method": "grpo", "options": {"ratio_clip_c": 1.1}},
    "grpo_with_bonus": {"method": "grpo", "entropy_coefficient": 0.1},
    "gspo": {"clip_low": 0.03, "clip_high": 0.04},
    "cispo": {"clip_low": None, "clip_high": 0.1},
    "rloo": {"clip_low": None, "clip_high": None},
    "dr_grpo": {},
}
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Folder with what NeMo RL made of the batch, and the formulas for it."""
    python = python_of("nemo_rl")
    folder = tmp_path_factory.mktemp("nemo_rl")
    write(folder / "in", rows(), METHODS)
    run(python, "nemo_rl", folder / "in", folder / "out")
    return folder / "out", Reference(folder / "in")


def leave_one_out_scaled(reference):
    """Reward minus the mean of the others, over the others' standard deviation unless that is 0."""
    values = []
    for row, given in enumerate(reference.batch):
        others = []
        for number, other in enumerate(reference.batch):
            if number != row and other["question"] == given["question"]:
                others.append(other["reward"])
        spread = np.std(others, ddof=1) if len(others) > 1 else 0.0
        centred = given["reward"] - np.mean(others)
        values.append(centred / (spread + 1e-6) if spread > 1e-7 else centred)
    return values


def test_grpo_leaves_the_response_out_of_baseline_and_scale(ran):
    out, reference = ran
    advantages = leave_one_out_scaled(reference)
    assert np.abs(np.subtract(advantages, reference.group_advantages())).max() > 0.1
    reference.check(out, "grpo", reference.token_mean(reference.clipped(advantages)), advantages, TOLERANCE)


def test_an_option_makes_the_papers_advantages(ran):
    out, reference = ran
    advantages = reference.group_advantages()
    loss = reference.token_mean(reference.clipped(advantages))
    reference.check(out, "grpo_of_the_group", loss, advantages, TOLERANCE)


def test_the_divergence_has_the_gradient_of_its_samples_too(ran):
    """Weights of 1 with a gradient: the estimate times ∇ log π is added to its own gradient."""
    out, reference = ran
    advantages = leave_one_out_scaled(reference)
    divergences = []
    for kl, logprobs in zip(reference.kl, reference.logprobs, strict=True):
        divergences.append(kl * (logprobs - logprobs.detach()).exp())
    loss = reference.token_mean(reference.clipped(advantages)) + 0.3 * reference.token_mean(divergences)
    reference.check(out, "grpo_with_divergence", loss, advantages, TOLERANCE)


def test_dual_clip_is_an_option(ran):
    out, reference = ran
    advantages = leave_one_out_scaled(reference)
    loss = reference.token_mean(reference.clipped(advantages, dual=1.1))
    reference.check(out, "grpo_with_dual_clip", loss, advantages, TOLERANCE)


def test_gspo_has_a_ratio_per_response(ran):
    out, reference = ran
    advantages = leave_one_out_scaled(reference)
    terms = reference.clipped(advantages, 0.03, 0.04, ratios=reference.sequence_ratios())
    reference.check(out, "gspo", reference.sequence_mean(terms), advantages, TOLERANCE)


def test_cispo_keeps_every_gradient(ran):
    out, reference = ran
    advantages = leave_one_out_scaled(reference)
    terms = []
    for advantage, ratio, logprobs in zip(advantages, reference.ratios, reference.logprobs, strict=True):
        terms.append(-ratio.detach().clamp(max=1.1) * advantage * logprobs)
    reference.check(out, "cispo", reference.token_mean(terms), advantages, TOLERANCE)


def test_rloo_has_log_probs_for_ratios(ran):
    out, reference = ran
    advantages = reference.group_advantages(leave_one_out=True)
    terms = []
    for advantage, logprobs in zip(advantages, reference.logprobs, strict=True):
        terms.append(-advantage * logprobs)
    reference.check(out, "rloo", reference.token_mean(terms), advantages, TOLERANCE)


def test_metrics_are_sums_over_micro_batches(ran):
    out, reference = ran
    methods = json.loads((out / "result.json").read_text())["methods"]
    ratios = torch.cat(reference.ratios).detach()
    assert methods["grpo"]["metrics"]["probs_ratio"] == pytest.approx(ratios.mean().item(), abs=1e-7)
    assert methods["grpo"]["metrics"]["probs_ratio_max"] == pytest.approx(ratios.max().item(), abs=1e-9)
    assert "dr_grpo" in methods["dr_grpo"]["supported"]
    assert "entropy_coefficient" in methods["grpo_with_bonus"]["supported"]
