"""Exact updates of a network: against every draw that training could make."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from examples.expected_gradient import add_anchored_gradient, add_expected_gradient
from examples.starters.parts import build_answer_tokenizer, build_model
from tagrpo.lab.objectives import expected_advantages
from tagrpo.modules.advantages import EntropyAdaptiveAdvantage, GroupAdvantage, PassAtKAdvantage
from tagrpo.modules.policy.logprobs import Scorer
from tagrpo.packing.policy import CausalPolicy
from tagrpo.types import Prompt, RewardGroups

pytestmark = pytest.mark.pages

TOKENIZER = build_answer_tokenizer(["right", "down", "walk"])
EOS = TOKENIZER.eos_token_id
PLAIN = build_model(TOKENIZER)
LIMIT = 2  # tokens of a response


@pytest.fixture
def scorer():
    torch.manual_seed(1)
    model = build_model(TOKENIZER)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0 if parameter.dim() > 1 else 1.0)
    return Scorer(CausalPolicy(model.double(), temperature=0.8))


def prompts_of(*texts, samples=3):
    ids = [torch.tensor(TOKENIZER(text).input_ids) for text in texts]
    return [
        Prompt(0, n, "plain", text, row, ids[0], samples)
        for n, (text, row) in enumerate(zip(texts, ids, strict=True))
    ]


def every_response():
    """All sequences of at most `LIMIT` tokens, in tokens."""
    others = [token for token in range(len(TOKENIZER)) if token != EOS]
    return [[EOS], *([token, last] for token in others for last in range(len(TOKENIZER)))]


def log_probabilities(scorer, prompt):
    """[number of responses] log-probs under a plain forward, with gradient in the policy's parameters."""
    logs, parameters = [], dict(scorer.policy.model.named_parameters())
    for response in every_response():
        ids = torch.cat([prompt.token_ids, torch.tensor(response)])[None]
        output = torch.func.functional_call(PLAIN, parameters, kwargs={"input_ids": ids, "use_cache": False})
        logits = output.logits[0, len(prompt.token_ids) - 1 : -1]
        steps = (logits / scorer.policy.temperature).log_softmax(-1)
        logs.append(steps.gather(1, torch.tensor(response)[:, None]).sum())
    return torch.stack(logs)


def gradient(scorer):
    return torch.cat([parameter.grad.flatten() for parameter in scorer.policy.parameters()])


def test_all_probabilities_sum_to_one(scorer):
    (prompt,) = prompts_of("walk")
    assert log_probabilities(scorer, prompt).exp().sum().item() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(
    "strategy",
    [
        GroupAdvantage("prompt", scale="none"),
        GroupAdvantage("question"),
        PassAtKAdvantage(2, group_by="question"),
    ],
    ids=["mean", "pooled", "pass@2"],
)
def test_it_is_the_mean_over_every_draw_of_every_response(scorer, strategy):
    # Two prompts of unequal difficulty, two samples each: 4 responses, right or wrong, each with its own gradient.
    prompts, samples = prompts_of("walk", "walk right", samples=2), 2
    right = TOKENIZER.convert_tokens_to_ids("down")
    correct = [[torch.tensor([right, EOS])]] * 2
    success = add_expected_gradient(scorer, prompts, correct, strategy, max_length=5)
    found = gradient(scorer)
    scorer.policy.zero_grad()

    logs = [log_probabilities(scorer, prompt) for prompt in prompts]
    verdict = torch.tensor([response == [right, EOS] for response in every_response()])
    p = torch.stack([log[verdict].exp().sum() for log in logs]).detach()
    assert torch.allclose(success, p, rtol=1e-9)
    assert abs(p[0] - p[1]) > 1e-3
    objective = 0
    for n, g in product(range(2), range(samples)):  # the response whose log-prob is differentiated
        mean = {True: 0.0, False: 0.0}
        for verdicts in product([True, False], repeat=4):
            advantages = strategy(
                RewardGroups(
                    rewards=torch.tensor(verdicts).double(),
                    correct=torch.tensor(verdicts),
                    question=torch.zeros(4).long(),
                    prompt=torch.tensor([0, 0, 1, 1]),
                )
            )
            here = 2 * n + g
            others = [float(p[r // 2] if v else 1 - p[r // 2]) for r, v in enumerate(verdicts) if r != here]
            mean[verdicts[here]] += others[0] * others[1] * others[2] * float(advantages[here])
        expected = torch.tensor([mean[bool(v)] for v in verdict], dtype=torch.float64)
        objective = objective - (logs[n].exp().detach() * expected * logs[n]).sum() / 4 / 5
    objective.backward()
    assert found.norm() > 1e-3
    # The scorer's log-probs are float32.
    assert (found - gradient(scorer)).norm() < 3e-6 * found.norm()


@pytest.mark.parametrize("group_by", ["prompt", "question"])
def test_anchored_to_the_original_it_is_the_mean_over_every_response_too(scorer, group_by):
    first, second = prompts_of("walk", "walk right", samples=2)
    prompts = [first, second._replace(anchor_ids=first.token_ids)]
    right = [TOKENIZER.convert_tokens_to_ids("down"), EOS]
    verdict = torch.tensor([response == right for response in every_response()])
    wrong = [torch.tensor(response) for response in every_response() if response != right]
    strategy = GroupAdvantage(group_by)
    success, listed = add_anchored_gradient(
        scorer, prompts, [[torch.tensor(right)]] * 2, [wrong] * 2, strategy, 5
    )
    found = gradient(scorer)
    scorer.policy.zero_grad()

    logs = [log_probabilities(scorer, prompt) for prompt in prompts]
    p = torch.stack([log[verdict].exp().sum() for log in logs]).detach()
    assert torch.allclose(success, p, rtol=1e-9)
    assert torch.allclose(listed, torch.ones(2, dtype=torch.float64))
    given = expected_advantages(strategy, p, 2)
    objective = 0
    for n in range(2):
        advantage = torch.where(verdict, given.correct[n], given.wrong[n])
        objective = objective - (logs[n].exp().detach() * advantage * logs[0]).sum() / 2 / 5
    objective.backward()
    assert found.norm() > 1e-3
    assert (found - gradient(scorer)).norm() < 3e-6 * found.norm()


def test_wrong_responses_that_are_not_listed_count_as_those_that_are(scorer):
    prompts = prompts_of("walk")
    right = [TOKENIZER.convert_tokens_to_ids("down"), EOS]
    few = [torch.tensor(response) for response in every_response()[:6] if response != right]
    strategy = GroupAdvantage("prompt")
    success, listed = add_anchored_gradient(scorer, prompts, [[torch.tensor(right)]], [few], strategy)
    assert success < listed < 1
    found = gradient(scorer)
    scorer.policy.zero_grad()
    logs = log_probabilities(scorer, prompts[0])
    given = expected_advantages(strategy, success, 3)
    kept = torch.tensor([response in [ids.tolist() for ids in few] for response in every_response()])
    verdict = torch.tensor([response == right for response in every_response()])
    p = logs.exp().detach()
    weights = torch.where(
        verdict, p * given.correct, torch.where(kept, p, 0.0) / p[kept].sum() * (1 - success) * given.wrong
    )
    (-(weights * logs).sum()).backward()
    assert (found - gradient(scorer)).norm() < 3e-6 * found.norm()


def test_steps_raise_the_success_that_they_ascend(scorer):
    prompts = prompts_of("walk", "walk right")
    correct = [[torch.tensor([TOKENIZER.convert_tokens_to_ids("down"), EOS])]] * 2
    optimizer = torch.optim.SGD(scorer.policy.parameters(), 0.003)
    rates = []
    for _ in range(4):
        optimizer.zero_grad()
        rates.append(add_expected_gradient(scorer, prompts, correct, GroupAdvantage("prompt"))[0].item())
        optimizer.step()
    assert rates == sorted(rates)
    assert rates[-1] > 1.02 * rates[0]


def test_strategies_that_read_more_than_rewards_are_refused_by_name(scorer):
    correct = [[torch.tensor([3, EOS])]]
    with pytest.raises(ValueError, match="EntropyAdaptiveAdvantage needs more"):
        add_expected_gradient(scorer, prompts_of("walk"), correct, EntropyAdaptiveAdvantage(2))
