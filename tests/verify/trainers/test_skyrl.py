"""SkyRL's own code against the papers' formulas under SkyRL's conventions.

SkyRL takes a group's mean and standard deviation in float32.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from tests.verify.trainers.exchange import Reference, python_of, rows, run, write

COV = {"share": 1.0, "low": -0.005, "high": 0.005}
METHODS = {
    "grpo": {},
    "grpo_with_bonus": {"method": "grpo", "kl_coefficient": 0.3, "entropy_coefficient": 0.2},
    "grpo_as_paper": {"method": "grpo", "options": {"loss_reduction": "sequence_mean"}},
    "dapo": {"clip_high": 0.28},
    "dapo_with_tight_dual_clip": {"method": "dapo", "options": {"clip_ratio_c": 1.1}},
    "dr_grpo": {},
    "gspo": {"clip_low": 0.03, "clip_high": 0.04},
    "cispo": {"clip_low": None, "clip_high": 0.1},
    "rloo": {"clip_low": None, "clip_high": None},
    "clip_cov": COV,
    "kl_cov": {"share": 0.2, "coefficient": 0.5},
    "gmpo": {},
}
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Folder with what SkyRL made of the batch, and the formulas for it."""
    python = python_of("skyrl")
    folder = tmp_path_factory.mktemp("skyrl")
    write(folder / "in", rows(), METHODS)
    run(python, "skyrl", folder / "in", folder / "out")
    return folder / "out", Reference(folder / "in")


def test_grpo_is_a_mean_over_tokens_without_dual_clip(ran):
    out, reference = ran
    advantages = reference.group_advantages()
    reference.check(out, "grpo", reference.token_mean(reference.clipped(advantages)), advantages, TOLERANCE)


def test_divergence_and_entropy_have_means_of_their_own(ran):
    """The divergence is a mean over responses, the entropy a mean over the tokens of each micro-batch."""
    out, reference = ran
    advantages = reference.group_advantages()
    loss = reference.token_mean(reference.clipped(advantages)) + 0.3 * reference.sequence_mean(reference.kl)
    for members in reference.micro_batches:
        entropy = torch.cat([reference.entropies[row] for row in members]).mean()
        loss = loss - 0.2 * entropy * len(members) / len(reference.batch)
    reference.check(out, "grpo_with_bonus", loss, advantages, TOLERANCE)


def test_options_make_the_papers_grpo(ran):
    out, reference = ran
    advantages = reference.group_advantages()
    loss = reference.sequence_mean(reference.clipped(advantages))
    reference.check(out, "grpo_as_paper", loss, advantages, TOLERANCE)


@pytest.mark.parametrize(
    ("entry", "high", "dual"), [("dapo", 0.28, 10.0), ("dapo_with_tight_dual_clip", 0.2, 1.1)]
)
def test_dapo_has_dual_clip(ran, entry, high, dual):
    out, reference = ran
    advantages = reference.group_advantages()
    loss = reference.token_mean(reference.clipped(advantages, high=high, dual=dual))
    reference.check(out, entry, loss, advantages, TOLERANCE)


def test_dr_grpo_divides_by_the_limit_of_tokens(ran):
    out, reference = ran
    advantages = reference.group_advantages(scale=False)
    terms = reference.clipped(advantages)
    loss = sum(term.sum() for term in terms) / 8 / len(terms)
    reference.check(out, "dr_grpo", loss, advantages, TOLERANCE)


def test_gspo_has_a_ratio_per_response(ran):
    out, reference = ran
    advantages = reference.group_advantages()
    terms = reference.clipped(advantages, 0.03, 0.04, ratios=reference.sequence_ratios())
    reference.check(out, "gspo", reference.sequence_mean(terms), advantages, TOLERANCE)


def test_cispo_keeps_every_gradient(ran):
    out, reference = ran
    advantages = reference.group_advantages()
    terms = []
    for advantage, ratio, logprobs in zip(advantages, reference.ratios, reference.logprobs, strict=True):
        terms.append(-ratio.detach().clamp(max=1.1) * advantage * logprobs)
    reference.check(out, "cispo", reference.token_mean(terms), advantages, TOLERANCE)


def test_rloo_leaves_one_out(ran):
    out, reference = ran
    advantages = reference.group_advantages(leave_one_out=True)
    loss = reference.token_mean(reference.clipped(advantages, math.inf, math.inf))
    reference.check(out, "rloo", loss, advantages, TOLERANCE)


def test_clip_cov_compares_covariances_of_scaled_advantages(ran):
    out, reference = ran
    advantages = reference.group_advantages()
    terms = reference.clipped(advantages)
    total = torch.zeros(())
    left_out = 0
    tokens = sum(reference.lengths)
    for members in reference.micro_batches:
        covariances = reference.covariances(advantages, members) / tokens
        ratios = torch.cat([reference.ratios[row] for row in members])
        given = torch.cat([reference.repeated(advantages, row) for row in members])
        clipped = ((ratios < 0.8) & (given < 0)) | ((ratios > 1.2) & (given > 0))
        out_of_loss = (covariances > COV["low"]) & (covariances < COV["high"]) & ~clipped
        total = total + torch.cat([terms[row] for row in members])[~out_of_loss].sum()
        left_out += int(out_of_loss.sum())
    assert 0 < left_out < tokens
    reference.check(out, "clip_cov", total / tokens, advantages, TOLERANCE)


def test_the_penalty_of_kl_cov_is_a_sum_over_tokens(ran):
    out, reference = ran
    advantages = reference.group_advantages()
    loss = reference.token_mean(reference.clipped(advantages, math.inf, math.inf))
    for members in reference.micro_batches:
        covariances = reference.covariances(advantages, members)
        largest = covariances.topk(max(1, int(0.2 * len(covariances)))).indices
        loss = loss + 0.5 * torch.cat([reference.ratios[row] for row in members])[largest].log().abs().sum()
    reference.check(out, "kl_cov", loss, advantages, TOLERANCE)


def test_metrics_are_sums_of_losses_and_means_of_others(ran):
    out, reference = ran
    result = json.loads((out / "result.json").read_text())
    assert (result["trainer"], result["version"]) == ("SkyRL", "0.4.0")
    metrics = result["methods"]["grpo"]["metrics"]
    assert metrics["final_loss"] == pytest.approx(result["methods"]["grpo"]["loss"], abs=1e-12)
    means = []
    for members in reference.micro_batches:
        means.append(torch.cat([reference.entropies[row] for row in members]).mean().item())
    assert metrics["policy_entropy"] == pytest.approx(np.mean(means), abs=1e-9)
    assert result["methods"]["gmpo"]["supported"] == "SkyRL 0.4.0 has no gmpo"
