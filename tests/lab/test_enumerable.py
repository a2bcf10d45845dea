"""Expected updates against all draws of all responses, with the strategies, the losses and the update of training."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import pytest
import torch

from tagrpo.lab.enumerable import (
    Policies,
    all_responses,
    expected_update,
    probabilities,
    success_rates,
    token_entropies,
    token_logprobs,
)
from tagrpo.lab.objectives import expected_weights
from tagrpo.modules.advantages import CombinationAdvantage, GroupAdvantage, PassAtKAdvantage
from tagrpo.modules.losses import PolicyLoss
from tagrpo.modules.policy.logprobs import Scorer
from tagrpo.modules.update import PolicyUpdate, UpdateOptions
from tagrpo.packing.batch import Work
from tagrpo.packing.head import TokenScores
from tagrpo.types import LossInputs, Prompt, RewardGroups, Rollouts

WORDS = all_responses(3, 2)  # seven responses in three states
CORRECT = torch.tensor([False, True, False, False, True, False, False])
SAMPLES = torch.tensor([2, 1])
UNIT = {"kl_coef": 0.0, "aggregation": "constant", "max_length": 1}


def logits(seed, prompts=2, responses=WORDS, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(prompts, *responses.table, generator=generator, dtype=torch.float64)


def policies(step=0.6, stale=0.5):
    old = logits(0)
    return Policies(old + step * logits(1), old, old + stale * logits(2), logits(3))


def gradient(value, parameters):
    return torch.autograd.grad(value, parameters)[0]


def draws(policy, responses=WORDS, samples=SAMPLES):
    """All batches: responses, the prompts that they answer, and the probability of drawing them."""
    prompt = torch.arange(len(samples)).repeat_interleave(samples)
    chance = probabilities(policy, responses)
    for rows in product(range(len(responses.lengths)), repeat=len(prompt)):
        response = torch.tensor(rows)
        yield response, prompt, float(chance[prompt, response].prod())


def by_all_draws(ages, strategy, loss, options):
    """Minus the mean gradient over all batches, with the importance weights written out."""
    parameters = ages.current.clone().requires_grad_()
    own = {name: token_logprobs(getattr(ages, name), WORDS) for name in ("old", "sampler", "reference")}
    current, entropy = token_logprobs(parameters, WORDS), token_entropies(parameters, WORDS)
    total = torch.zeros((), dtype=torch.float64)
    for response, prompt, probability in draws(ages.sampler):
        correct = CORRECT[response]
        groups = RewardGroups(
            rewards=correct.double(), correct=correct, question=torch.zeros_like(prompt), prompt=prompt
        )
        tokens = [torch.nonzero(WORDS.response == row)[:, 0] for row in response]
        score = torch.zeros_like(prompt) if options.anchor == "original" else prompt

        def read(table, prompts, tokens=tokens):
            return torch.cat([table[p, t] for p, t in zip(prompts, tokens, strict=True)])

        weights = (
            (read(own["old"], prompt) - read(own["sampler"], prompt)).exp().clamp(max=options.staleness_cap)
        )
        if options.prompt_correction is not None:
            change = (
                (read(own["old"], score) - read(own["old"], prompt))
                .exp()
                .clamp(max=options.prompt_correction)
            )
            weights = (
                torch.where((prompt == score).repeat_interleave(WORDS.lengths[response]), 1, change) * weights
            )
        inputs = LossInputs(
            logprobs=read(current, score),
            old_logprobs=read(own["old"], score),
            reference_logprobs=read(own["reference"], score),
            entropy=read(entropy, score),
            advantages=strategy(groups),
            response=torch.arange(len(response)).repeat_interleave(WORDS.lengths[response]),
            lengths=WORDS.lengths[response],
            num_responses=len(response),
            num_tokens=1.0,
            weights=weights,
        )
        total = total + probability * loss(inputs).loss
    return -gradient(total, parameters)


LOSSES = {
    "GRPO": PolicyLoss(kl_coef=0.1),
    "DAPO's clip": PolicyLoss(clip_high=0.28, kl_coef=0.0),
    "Dr. GRPO": PolicyLoss(aggregation="constant", max_length=3, kl_coef=0.1, kl_estimator="k1"),
    "GSPO": PolicyLoss(ratio="sequence", clip_low=0.05, clip_high=0.1, kl_coef=0.0),
    "GMPO": PolicyLoss(ratio="geometric", clip_low=0.4, clip_high=0.4, kl_coef=0.2, kl_estimator="k2"),
    "CISPO": PolicyLoss(objective="cispo", clip_low=1.0, clip_high=0.28, kl_coef=0.0),
    "dual clip": PolicyLoss(dual_clip=1.1, kl_coef=0.0),
    "entropy bonus": PolicyLoss(entropy_coef=0.3),
}


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_agrees_with_all_draws_where_ratios_are_clipped(name):
    options = UpdateOptions(anchor="own", staleness_cap=1.3)
    strategy, ages = GroupAdvantage("question"), policies()
    found = expected_update(ages, WORDS, CORRECT, strategy, LOSSES[name], SAMPLES, options)
    torch.testing.assert_close(found, by_all_draws(ages, strategy, LOSSES[name], options), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "strategy",
    [
        GroupAdvantage("prompt", baseline="none", scale="none"),
        PassAtKAdvantage(2),
        CombinationAdvantage(2, epsilon=0.1),
    ],
)
@pytest.mark.parametrize(
    "options",
    [
        UpdateOptions(anchor="original"),
        UpdateOptions(anchor="original", prompt_correction=1.2),
        UpdateOptions(anchor="original", prompt_correction=0.7, staleness_cap=1.1),
    ],
    ids=["anchored", "corrected", "corrected and stale"],
)
def test_every_anchor_and_correction_agrees_with_all_draws(strategy, options):
    ages, loss = policies(), PolicyLoss(kl_coef=0.1)
    found = expected_update(ages, WORDS, CORRECT, strategy, loss, SAMPLES, options)
    torch.testing.assert_close(found, by_all_draws(ages, strategy, loss, options), rtol=0, atol=1e-14)


# ---------------------------------------------------------------------- the update of training


class TableScorer(Scorer):
    """Scores words under a table of logits; a score prompt's first token is its row in the table."""

    def pack(self, responses, rows):
        parts = [self._tokens(responses, row) for row in rows.tolist() or [0]]
        packed = SimpleNamespace(
            rows=rows,
            place=torch.cat([torch.stack([torch.full_like(t, int(prompt)), t]) for prompt, t in parts], 1),
            lengths=torch.tensor([len(t) for _, t in parts]),
            response=torch.arange(len(parts)).repeat_interleave(torch.tensor([len(t) for _, t in parts])),
            work=Work(0, 0, 0),
        )
        yield packed, True

    def _tokens(self, responses, row):
        ids = responses.responses[row].tolist()
        words = WORDS.tokens.split(WORDS.lengths.tolist())
        number = next(n for n, word in enumerate(words) if word.tolist() == ids)
        return responses.prompts[responses.prompt[row]][0], torch.nonzero(WORDS.response == number)[:, 0]

    def reference_logprobs(self, packed):
        return token_logprobs(self.reference, WORDS)[tuple(packed.place)]


class Table(torch.nn.Module):
    def __init__(self, table):
        super().__init__()
        self.table = torch.nn.Parameter(table.clone())

    def forward(self, packed, entropy="none", loss=None):
        return TokenScores(
            *(f(self.table, WORDS)[tuple(packed.place)] for f in (token_logprobs, token_entropies))
        )


def updated(ages, response, prompt, strategy, loss, options):
    """What one `PolicyUpdate` on these responses adds to the logits, at a learning rate of one."""
    ids = torch.tensor([[0], [1]])
    words, spans = WORDS.tokens.split(WORDS.lengths.tolist()), torch.arange(len(WORDS.tokens))
    engine = token_logprobs(ages.sampler, WORDS)
    correct = CORRECT[response]
    policy = Table(ages.current)
    update = PolicyUpdate(
        TableScorer(policy, ages.reference),
        strategy,
        loss,
        torch.optim.SGD(policy.parameters(), lr=1.0),
        options,
    )
    update(
        Rollouts(
            prompts=[Prompt(0, n, "plain", "", ids[n], ids[0], int(SAMPLES[n])) for n in range(2)],
            prompt=prompt,
            question=torch.zeros_like(prompt),
            rephrasing=prompt,
            token_ids=[words[row] for row in response],
            logprobs=[
                engine[p, spans[WORDS.response == r]].float() for p, r in zip(prompt, response, strict=True)
            ],
            truncated=torch.zeros_like(correct),
            text=[""] * len(response),
            correct=correct,
            answers=[None] * len(response),
            rewards=correct.float(),
            replayed=torch.zeros_like(correct),
            staleness=torch.ones_like(prompt),
        ),
        num_questions=1,
    )
    return policy.table.detach() - ages.current


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"anchor": "own"}, marks=pytest.mark.runs),
        pytest.param({"anchor": "original"}, marks=pytest.mark.runs),
        {"anchor": "original", "prompt_correction": 1.2},
    ],
    ids=str,
)
def test_the_update_of_training_is_this_on_average(options):
    strategy, loss = GroupAdvantage("question"), PolicyLoss(kl_coef=0.1)
    options = UpdateOptions(mini_batches=1, max_grad_norm=1e9, staleness_cap=1.3, **options)
    ages = policies(step=0.0)
    parts = [p * updated(ages, r, q, strategy, loss, options) for r, q, p in draws(ages.sampler)]
    found = expected_update(ages, WORDS, CORRECT, strategy, loss, SAMPLES, options)
    torch.testing.assert_close(found, sum(parts), rtol=0, atol=1e-6)
    assert found.abs().max() > 1e-2


# ---------------------------------------------------------------------- objectives


@pytest.mark.parametrize("responses", [all_responses(16), all_responses(4, 4)], ids=["one token", "words"])
@pytest.mark.parametrize(
    "strategy", [GroupAdvantage("prompt"), GroupAdvantage("question"), PassAtKAdvantage(3)]
)
def test_under_its_own_prompt_a_method_ascends_its_weights(responses, strategy):
    parameters = logits(5, 3, responses).requires_grad_()
    correct = torch.arange(len(responses.lengths)) % 5 == 0
    success = success_rates(parameters, responses, correct)
    weights = expected_weights(strategy, success.detach(), 4)
    found = expected_update(
        parameters, responses, correct, strategy, PolicyLoss(**UNIT), 4, UpdateOptions(anchor="own")
    )
    torch.testing.assert_close(found, gradient((weights * success).sum(), parameters), rtol=0, atol=1e-14)


def anchored(distance, responses, correction):
    """Update of TA-GRPO without a KL term, and the gradient of (Σ w_n) p_0."""
    table = logits(6, 1, responses).repeat(4, 1, 1)
    table[1:] += distance * logits(7, 3, responses)
    table.requires_grad_()
    correct = torch.arange(len(responses.lengths)) % 7 == 0
    success = success_rates(table, responses, correct)
    weights = expected_weights(GroupAdvantage(), success.detach(), 4)
    options = UpdateOptions(anchor="original", prompt_correction=correction)
    found = expected_update(table, responses, correct, GroupAdvantage(), PolicyLoss(**UNIT), 4, options)
    return found, gradient(weights.sum() * success[0], table)


def bias(*arguments):
    found, target = anchored(*arguments)
    return float((found - target).norm() / target.norm())


def test_anchoring_is_biased_by_the_distance_of_the_prompts_and_full_weights_of_single_tokens_remove_it():
    tokens = all_responses(16)
    assert bias(0.0, tokens, None) < 1e-12
    assert 1e-2 < bias(0.1, tokens, None) < bias(1.0, tokens, None)
    assert 1e-3 < bias(1.0, tokens, 2.0) < bias(1.0, tokens, None)
    assert bias(1.0, tokens, 1e9) < 1e-12


def test_full_weights_of_tokens_leave_a_bias_in_longer_responses():
    assert bias(1.0, all_responses(4, 3), 1e9) > 1e-2


def test_an_anchored_update_moves_the_original_alone():
    found, _ = anchored(1.0, all_responses(16), None)
    assert found[0].any()
    assert not found[1:].any()


@pytest.mark.parametrize(("estimator", "sign"), [("k1", 0), ("k2", 1), ("k3", -1)])
def test_kl_estimators_have_the_gradients_that_their_docstring_states(estimator, sign):
    tokens, none = all_responses(16), torch.zeros(16, dtype=torch.bool)
    policy, reference = logits(8, 1, tokens).requires_grad_(), logits(9, 1, tokens)
    ages = Policies(policy, policy, policy, reference)
    loss = PolicyLoss(kl_coef=0.5, kl_estimator=estimator)
    found = expected_update(ages, tokens, none, GroupAdvantage(), loss, 2, UpdateOptions(anchor="own"))
    p, q = probabilities(policy, tokens), probabilities(reference, tokens)
    divergence = {0: 0 * p.sum(), 1: (p * (p / q).log()).sum(), -1: (q * (q / p).log()).sum()}[sign]
    torch.testing.assert_close(found, -0.5 * gradient(divergence, policy), rtol=0, atol=1e-13)


def test_an_entropy_bonus_ascends_the_entropy():
    tokens, none = all_responses(16), torch.zeros(16, dtype=torch.bool)
    policy = logits(8, 1, tokens).requires_grad_()
    p = probabilities(policy, tokens)
    loss = PolicyLoss(kl_coef=0.0, entropy_coef=0.25)
    found = expected_update(policy, tokens, none, GroupAdvantage(), loss, 2, UpdateOptions(anchor="own"))
    torch.testing.assert_close(found, gradient(-0.25 * (p * p.log()).sum(), policy), rtol=0, atol=1e-14)


def test_token_means_are_normalised_by_the_expected_number_of_tokens():
    ages, options = policies(), UpdateOptions(anchor="own")
    share = SAMPLES.double() / SAMPLES.sum()
    length = float(share @ probabilities(ages.sampler, WORDS) @ WORDS.lengths.double())
    found, constant = (
        expected_update(ages, WORDS, CORRECT, GroupAdvantage(), loss, SAMPLES, options)
        for loss in (PolicyLoss(aggregation="token_mean", kl_coef=0.0), PolicyLoss(**UNIT))
    )
    torch.testing.assert_close(found, constant / length, rtol=1e-12, atol=0)


# ---------------------------------------------------------------------- responses


@pytest.mark.parametrize(
    ("vocabulary", "length", "count"), [(2, 1, 2), (4096, 1, 4096), (4, 3, 40), (3, 11, 4095)]
)
def test_all_responses_have_a_probability_of_one(vocabulary, length, count):
    responses = all_responses(vocabulary, length)
    assert len(responses.lengths) == count
    total = probabilities(logits(0, 2, responses), responses).sum(1)
    torch.testing.assert_close(total, torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("vocabulary", "length", "count"), [(4097, 1, "4,097"), (4, 8, "9,841"), (1, 2, "1"), (4, 0, "1")]
)
def test_too_many_responses_and_none_are_refused(vocabulary, length, count):
    with pytest.raises(ValueError, match=f"4,096 responses, .*{vocabulary} and {length}, .* {count}"):
        all_responses(vocabulary, length)


def test_states_are_prefixes():
    words = [word.tolist() for word in WORDS.tokens.split(WORDS.lengths.tolist())]
    assert sorted(words) == [[0], [1, 0], [1, 1], [1, 2], [2, 0], [2, 1], [2, 2]]
    prefixes = [tuple(word[:end]) for word in words for end in range(len(word))]
    assert len(set(zip(prefixes, WORDS.states.tolist(), strict=True))) == len(set(prefixes)) == WORDS.table[0]
