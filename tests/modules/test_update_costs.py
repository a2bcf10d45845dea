"""The arithmetic of an update, counted: what must not grow unnoticed."""

from __future__ import annotations

import pytest
import torch

from tagrpo.modules.advantages import GroupAdvantage
from tagrpo.modules.losses import PolicyLoss
from tagrpo.modules.policy.logprobs import Scorer
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.modules.update import PolicyUpdate, UpdateOptions
from tagrpo.packing.policy import CausalPolicy
from tests.costs import Costs

REWARDS = [[[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]], [[0.0, 1.0, 0.5], [1.0, 0.0, 0.0]]]


def distinct(batch, questions):
    """Distinct prefixes of anchors with their responses, and how many of them predict a response token."""
    rollouts = batch.rollouts
    anchors = [prompt.anchor_ids.tolist() for prompt in batch.prompts if prompt.rephrasing == 0]
    prefixes = set()
    states = set()
    for row, ids in enumerate(rollouts.token_ids):
        question = int(rollouts.question[row])
        if question in questions:
            anchor = anchors[question]
            whole = (*anchor, *ids.tolist()[:-1])
            every = [whole[: end + 1] for end in range(len(whole))]
            prefixes.update(every)
            states.update(every[len(anchor) - 1 :])
    return len(prefixes), len(states)


@pytest.mark.parametrize(("checkpointing", "layers_again"), [(False, 0), (0.5, 1), (True, 2)])
def test_layers_multiply_distinct_tokens_three_times_and_four_times_where_they_are_computed_again(
    checkpointing, layers_again, tiny_policy, make_batch
):
    """Forward and two products of the backward, 6 FLOP per weight and token; 2 more where it is computed again.

    A layer's last product is not: no backward needs its outcome.
    """
    model = load_causal_lm(tiny_policy, gradient_checkpointing=checkpointing)
    policy = CausalPolicy(model).train()
    layers = sum(p.numel() for p in model.model.layers.parameters() if p.dim() == 2)
    batch = make_batch(REWARDS)
    update = PolicyUpdate(
        Scorer(policy, token_budget=1000),
        GroupAdvantage("question"),
        PolicyLoss(kl_coef=0.0),
        torch.optim.SGD(policy.parameters(), lr=0.1),
        UpdateOptions(mini_batches=1),
    )
    tokens, states = distinct(batch, {0, 1})
    with Costs() as costs:
        result = update(batch.rollouts, len(batch.groups))
    assert result.dropped == 0
    again = layers_again * (layers // 2 - model.model.layers[0].mlp.down_proj.weight.numel())
    head = 6 * model.lm_head.weight.numel() * states
    assert costs.product_flop - head == (6 * layers + 2 * again) * tokens
    least = 6 * layers * tokens
    print(f"products of the layers, {checkpointing=}: {(costs.product_flop - head) / least:.3f} of the least")
    assert costs.product_flop - head <= 4 / 3 * least


def test_an_update_with_a_kl_term_costs_one_and_a_half_forwards_beyond_forward_and_backward(
    tiny_policy, make_batch
):
    """The reference of all responses, and the old log-probs of the second of two mini-batches."""
    model = load_causal_lm(tiny_policy)
    policy, reference = CausalPolicy(model).train(), CausalPolicy(load_causal_lm(tiny_policy)).eval()
    forward = 2 * sum(p.numel() for p in model.model.layers.parameters() if p.dim() == 2)
    batch = make_batch(REWARDS)
    rollouts = batch.rollouts
    (first, first_states), (second, second_states) = (distinct(batch, {question}) for question in (0, 1))
    update = PolicyUpdate(
        Scorer(policy, reference, token_budget=1000),
        GroupAdvantage("question"),
        PolicyLoss(kl_coef=0.04),
        torch.optim.SGD(policy.parameters(), lr=0.1),
        UpdateOptions(mini_batches=2),
    )
    with Costs() as costs:
        update(rollouts, len(batch.groups))
    # The head: three products of each state in the update, one for the reference, one for old log-probs.
    head = 2 * model.lm_head.weight.numel() * (4 * (first_states + second_states) + second_states)
    equivalents = (costs.product_flop - head) / (forward * (first + second))
    assert equivalents == pytest.approx(3 + 1 + second / (first + second), abs=1e-9)
    assert equivalents - 3 <= 1.9


def test_a_share_of_layers_that_is_none_is_refused(tiny_policy):
    with pytest.raises(ValueError, match=r"model\.load\.gradient_checkpointing"):
        load_causal_lm(tiny_policy, gradient_checkpointing=1.5)


def test_costs_count_products_exactly_and_bytes_that_are_read_and_written():
    a, b, c = torch.randn(3, 4), torch.randn(4, 5), torch.zeros(3, 5)
    with Costs() as costs:
        c.addmm_(a, b)
        a.view(4, 3).exp()
    assert costs.product_flop == 2 * 3 * 4 * 5
    assert costs.product_bytes == 4 * (12 + 20 + 15 + 15)  # what it adds to is read and written
    assert costs.other_bytes == 4 * (12 + 12)
