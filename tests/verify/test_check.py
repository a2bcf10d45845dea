"""One's own advantages and loss against a formula."""

from __future__ import annotations

import pytest
import torch

from tagrpo.verify.check import check, problem


@pytest.fixture(scope="module")
def given():
    return problem("grpo")


def own_advantages(given, correction=1):
    """GRPO's advantages, in a few lines of a user."""
    advantages = torch.zeros_like(given.rewards)
    for prompt in given.prompt.unique():
        rows = given.prompt == prompt
        rewards = given.rewards[rows]
        advantages[rows] = (rewards - rewards.mean()) / (rewards.std(correction=correction) + 1e-6)
    return advantages


def own_loss(logprobs, old_logprobs, advantages, mask):
    """GRPO's loss, in a few lines of a user."""
    ratio = (logprobs - old_logprobs).exp()
    terms = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    return -((terms * mask).sum(1) / mask.sum(1)).mean()


def token_mean(logprobs, old_logprobs, advantages, mask):
    ratio = (logprobs - old_logprobs).exp()
    terms = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    return -(terms * mask).sum() / mask.sum()


def per_micro_batch(logprobs, old_logprobs, advantages, mask):
    parts = zip(*(x.split(6) for x in (logprobs, old_logprobs, advantages, mask)), strict=True)
    return torch.stack([token_mean(*part) for part in parts]).mean()


def misplaced(logprobs, old_logprobs, advantages, mask):
    """The old log-probs are those of the next response."""
    return own_loss(logprobs, old_logprobs.roll(-1, 0), advantages, mask)


def test_code_that_meets_the_formula_has_no_findings(given):
    assert check(given, advantages=own_advantages(given), loss=own_loss) == []


def test_faults_of_a_user_are_named_with_place_and_values(given):
    (finding,) = check(given, advantages=own_advantages(given, correction=0))
    assert finding.causes == ("standard deviation without Bessel's correction",)
    assert finding.row == 0
    # rewards 1, 0, 0, ¼: mean 5/16; Σ(r − r̄)² = 1.0625 − 4 · 25/256 = 0.671875
    assert finding.expected == pytest.approx(0.6875 / (0.671875 / 3) ** 0.5, rel=1e-5)
    assert finding.found == pytest.approx(0.6875 / (0.671875 / 4) ** 0.5, rel=1e-5)
    for loss, said in (
        (token_mean, ("one mean over all tokens",)),
        (misplaced, ("ratios to the wrong response's old log-probs (the next one's)",)),
        (per_micro_batch, ("one mean over all tokens", "a normaliser per micro-batch of 6 responses")),
    ):
        (finding,) = check(given, loss=loss)
        assert finding.causes == said
        assert finding.what == "token weights"


def test_a_trainers_conventions_are_met_by_their_formula():
    verl = problem("grpo", "verl")

    def loss(logprobs, old_logprobs, advantages, mask):
        ratio = (logprobs - old_logprobs).exp()
        terms = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        terms = torch.where(advantages < 0, torch.maximum(terms, 3 * advantages), terms)
        return -(terms * mask).sum() / mask.sum()

    assert check(verl, loss=loss) == []
    (finding,) = check(verl, loss=token_mean)
    assert finding.causes == ("no dual clip",)


def test_the_problem_is_printed_with_rewards_and_advantages(given):
    lines = str(given).splitlines()
    assert len(lines) == 1 + len(given.batch)
    assert lines[1].split() == ["0", "0", "1", "1.00", "1.452741"]


def test_nothing_to_check_and_unknown_methods_are_refused(given):
    with pytest.raises(ValueError, match="advantages or a loss"):
        check(given)
    with pytest.raises(ValueError, match="method"):
        problem("none_such")
    with pytest.raises(ValueError, match="pass_at_k"):
        problem("pass_at_k")
