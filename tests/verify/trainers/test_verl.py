"""verl's own code against the papers' formulas under verl's conventions."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from tests.verify.trainers.exchange import Reference, python_of, rows, run, write

COV = {"share": 1.0, "low": -0.5, "high": 0.5}
METHODS = {
    "grpo": {},
    "grpo_with_bonus": {"method": "grpo", "kl_coefficient": 0.3, "entropy_coefficient": 0.2},
    "grpo_with_tight_dual_clip": {"method": "grpo", "options": {"clip_ratio_c": 1.1}},
    "grpo_as_paper": {
        "method": "grpo",
        "options": {"loss_agg_mode": "seq-mean-token-mean", "clip_ratio_c": 1e9},
    },
    "dapo": {"clip_high": 0.28},
    "dr_grpo": {},
    "dr_grpo_of_width": {"method": "dr_grpo", "options": {"loss_scale_factor": None}},
    "gspo": {"clip_low": 0.03, "clip_high": 0.04},
    "cispo": {"clip_low": None, "clip_high": 0.1},
    "rloo": {"clip_low": None, "clip_high": None},
    "clip_cov": COV,
    "kl_cov": {"share": 0.2, "coefficient": 0.5},
    "gmpo": {"clip_low": 0.1, "clip_high": 0.1},
    "pass_at_k": {},
    "ta_grpo": {},
    "misspelled": {"method": "grpo", "options": {"loss_aggmode": "token-mean"}},
}
DUAL = 3.0
"""verl's dual clip, in its default policy loss alone."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Folder with what verl made of the batch, and the formulas for it."""
    python = python_of("verl")
    folder = tmp_path_factory.mktemp("verl")
    write(folder / "in", rows(), METHODS)
    run(python, "verl", folder / "in", folder / "out")
    return folder / "out", Reference(folder / "in")


def test_grpo_is_a_mean_over_the_tokens_of_the_mini_batch_with_dual_clip(ran):
    out, reference = ran
    advantages = reference.group_advantages()
    reference.check(out, "grpo", reference.token_mean(reference.clipped(advantages, dual=DUAL)), advantages)


def test_entropy_and_divergence_are_aggregated_as_the_policy_term(ran):
    out, reference = ran
    advantages = reference.group_advantages()
    loss = reference.token_mean(reference.clipped(advantages, dual=DUAL))
    loss = loss - 0.2 * reference.token_mean(reference.entropies) + 0.3 * reference.token_mean(reference.kl)
    reference.check(out, "grpo_with_bonus", loss, advantages)


def test_dual_clip_bounds_the_term_of_negative_advantages(ran):
    out, reference = ran
    advantages = reference.group_advantages()
    tight, loose = (reference.token_mean(reference.clipped(advantages, dual=dual)) for dual in (1.1, DUAL))
    assert tight.item() != loose.item()
    reference.check(out, "grpo_with_tight_dual_clip", tight, advantages)


def test_options_make_the_papers_grpo(ran):
    out, reference = ran
    advantages = reference.group_advantages()
    reference.check(out, "grpo_as_paper", reference.sequence_mean(reference.clipped(advantages)), advantages)


def test_dapo_clips_higher(ran):
    out, reference = ran
    advantages = reference.group_advantages()
    terms = reference.clipped(advantages, high=0.28, dual=DUAL)
    reference.check(out, "dapo", reference.token_mean(terms), advantages)


def test_dr_grpo_divides_by_the_limit_of_tokens(ran):
    out, reference = ran
    advantages = reference.group_advantages(scale=False)
    terms = reference.clipped(advantages, dual=DUAL)
    loss = sum(term.sum() for term in terms) / 8 / len(terms)
    reference.check(out, "dr_grpo", loss, advantages)


def test_without_a_scale_factor_dr_grpo_divides_by_the_longest_response_of_the_micro_batch(ran):
    out, reference = ran
    advantages = reference.group_advantages(scale=False)
    terms = reference.clipped(advantages, dual=DUAL)
    loss = torch.zeros(())
    for members in reference.micro_batches:
        longest = max(reference.lengths[row] for row in members)
        loss = loss + sum(terms[row].sum() for row in members) / longest / len(terms)
    assert len({max(reference.lengths[row] for row in members) for members in reference.micro_batches}) > 1
    reference.check(out, "dr_grpo_of_width", loss, advantages)


def test_gspo_has_a_ratio_per_response(ran):
    out, reference = ran
    advantages = reference.group_advantages()
    terms = reference.clipped(advantages, 0.03, 0.04, ratios=reference.sequence_ratios())
    reference.check(out, "gspo", reference.sequence_mean(terms), advantages)


def test_cispo_keeps_every_gradient(ran):
    out, reference = ran
    advantages = reference.group_advantages()
    terms = []
    for advantage, ratio, logprobs in zip(advantages, reference.ratios, reference.logprobs, strict=True):
        terms.append(-ratio.detach().clamp(max=1.1) * advantage * logprobs)
    reference.check(out, "cispo", reference.token_mean(terms), advantages)


def test_rloo_leaves_one_out(ran):
    out, reference = ran
    advantages = reference.group_advantages(leave_one_out=True)
    terms = reference.clipped(advantages, math.inf, math.inf, dual=DUAL)
    reference.check(out, "rloo", reference.token_mean(terms), advantages)


def test_clip_cov_ranks_the_micro_batch_without_clipped_tokens(ran):
    out, reference = ran
    advantages = reference.group_advantages()
    terms = reference.clipped(advantages)
    total = torch.zeros(())
    left_out = 0
    for members in reference.micro_batches:
        covariances = reference.covariances(advantages, members)
        ratios = torch.cat([reference.ratios[row] for row in members])
        given = torch.cat([reference.repeated(advantages, row) for row in members])
        clipped = ((ratios < 0.8) & (given < 0)) | ((ratios > 1.2) & (given > 0))
        out_of_loss = (covariances > COV["low"]) & (covariances < COV["high"]) & ~clipped
        total = total + torch.cat([terms[row] for row in members])[~out_of_loss].sum()
        left_out += int(out_of_loss.sum())
    assert 0 < left_out < sum(reference.lengths)
    reference.check(out, "clip_cov", total / sum(reference.lengths), advantages)


def test_kl_cov_ranks_the_micro_batch(ran):
    out, reference = ran
    advantages = reference.group_advantages()
    terms = reference.clipped(advantages, math.inf, math.inf)
    total = sum(term.sum() for term in terms)
    for members in reference.micro_batches:
        covariances = reference.covariances(advantages, members)
        largest = covariances.topk(max(1, int(0.2 * len(covariances)))).indices
        total = total + 0.5 * torch.cat([reference.ratios[row] for row in members])[largest].log().abs().sum()
    reference.check(out, "kl_cov", total / sum(reference.lengths), advantages)


def test_gmpo_sums_the_means_of_micro_batches(ran):
    out, reference = ran
    advantages = reference.group_advantages()
    values = []
    for advantage, ratio in zip(advantages, reference.ratios, strict=True):
        log = ratio.log()
        bounded = log.clamp(max=0.1) if advantage > 0 else log.clamp(min=-0.1)
        values.append(-advantage * bounded.mean().exp())
    means = [sum(values[row] for row in members) / len(members) for members in reference.micro_batches]
    reference.check(out, "gmpo", sum(means), advantages)


def test_pass_at_k_is_best_minus_second_best(ran):
    out, reference = ran
    advantages = np.zeros(len(reference.batch))
    for question in range(4):
        members = [row for row, given in enumerate(reference.batch) if given["question"] == question]
        rewards = np.array([reference.batch[row]["reward"] for row in members])
        if rewards.std():
            best, second = np.sort(rewards)[::-1][:2]
            advantages[members[rewards.argmax()]] = (best - second) / (rewards.std(ddof=1) + 1e-6)
    loss = reference.token_mean(reference.clipped(advantages, dual=DUAL))
    reference.check(out, "pass_at_k", loss, advantages)


def test_metrics_are_means_over_micro_batches(ran):
    out, reference = ran
    result = json.loads((out / "result.json").read_text())["methods"]["grpo"]
    means = []
    for members in reference.micro_batches:
        ratios = torch.cat([reference.ratios[row] for row in members]).detach()
        means.append(float(-ratios.log().mean()))
    assert result["metrics"]["actor/ppo_kl"] == pytest.approx(np.mean(means), abs=1e-7)
    overall = float(-torch.cat(reference.ratios).detach().log().mean())
    assert abs(np.mean(means) - overall) > 1e-3
    assert result["metrics"]["actor/pg_loss"] == pytest.approx(result["loss"], abs=1e-12)


def test_the_result_names_version_and_options(ran):
    out, _ = ran
    result = json.loads((out / "result.json").read_text())
    assert (result["trainer"], result["version"]) == ("verl", "0.9.1")
    assert result["methods"]["dr_grpo"]["options"]["loss_scale_factor"] == 8
    assert result["methods"]["ta_grpo"] == {"supported": "verl 0.9.1 has no ta_grpo"}
    assert "loss_aggmode" in result["methods"]["misspelled"]["supported"]


def test_a_single_response_keeps_its_raw_reward(tmp_path):
    python = python_of("verl")
    batch = rows(groups=(1, 2))
    write(tmp_path / "in", batch, {"grpo": {}, "rloo": {}, "pass_at_k": {}})
    result = run(python, "verl", tmp_path / "in", tmp_path / "out")["methods"]
    raw = [batch[0]["reward"]] * len(batch[0]["response_ids"])
    assert result["grpo"]["advantages"][0] == pytest.approx(raw, rel=2e-6)
    assert result["rloo"]["advantages"][0] == raw
    assert "['0.0']" in result["pass_at_k"]["supported"]


def test_rewards_of_none_are_refused(tmp_path):
    python = python_of("verl")
    batch = rows(groups=(2, 2))
    batch[1]["reward"] = None
    write(tmp_path / "in", batch, {"grpo": {}})
    result = run(python, "verl", tmp_path / "in", tmp_path / "out")["methods"]
    assert "[1]" in result["grpo"]["supported"]
