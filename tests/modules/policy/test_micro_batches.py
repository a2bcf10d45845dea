"""Plans lose nothing and keep the budget."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tagrpo.modules.policy.micro_batches import plan_micro_batches


def cost(rows, prompt_lengths, prompt, lengths):
    shared = {int(prompt[row]) for row in rows}
    return sum(int(prompt_lengths[p]) for p in shared) + sum(int(lengths[row]) for row in rows)


@given(
    prompt_lengths=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    responses=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 30)), max_size=25),
    budget=st.integers(1, 120),
)
@settings(max_examples=150)
def test_every_response_is_planned_once_and_within_the_budget(prompt_lengths, responses, budget):
    prompt = torch.tensor([p % len(prompt_lengths) for p, _ in responses], dtype=torch.long)
    lengths = torch.tensor([length for _, length in responses], dtype=torch.long)
    plan = plan_micro_batches(torch.tensor(prompt_lengths), prompt, lengths, budget)
    assert sorted(row for part in plan for row in part.tolist()) == list(range(len(responses)))
    for part in plan:
        rows = part.tolist()
        assert rows == sorted(rows)
        assert cost(rows, prompt_lengths, prompt, lengths) <= budget or len(rows) == 1


@given(
    lengths=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 30)), max_size=25),
    budget=st.integers(1, 120),
)
@settings(max_examples=150)
def test_without_sharing_a_padded_batch_keeps_the_budget(lengths, budget):
    heads = torch.tensor([head for head, _ in lengths], dtype=torch.long)
    own = torch.tensor([length for _, length in lengths], dtype=torch.long)
    plan = plan_micro_batches(heads, torch.arange(len(lengths)), own, budget, share_prefix=False)
    assert sorted(row for part in plan for row in part.tolist()) == list(range(len(lengths)))
    for part in plan:
        assert len(part) * int((heads + own)[part].max()) <= budget or len(part) == 1


def test_responses_of_a_prompt_stay_together_where_they_fit():
    plan = plan_micro_batches(torch.tensor([10, 10]), torch.tensor([0, 1, 0, 1]), torch.tensor([5, 5, 5, 5]), 20)
    assert [part.tolist() for part in plan] == [[0, 2], [1, 3]]


def test_a_budget_that_is_met_exactly_is_not_left():
    heads = torch.tensor([1, 1])
    plan = plan_micro_batches(heads, torch.tensor([0, 1]), torch.tensor([4, 4]), 10)
    assert [part.tolist() for part in plan] == [[0, 1]]
    assert len(plan_micro_batches(heads, torch.tensor([0, 1]), torch.tensor([4, 4]), 9)) == 2
    plan = plan_micro_batches(heads, torch.tensor([0, 1]), torch.tensor([4, 4]), 10, share_prefix=False)
    assert [part.tolist() for part in plan] == [[0, 1]]
    assert len(plan_micro_batches(heads, torch.tensor([0, 1]), torch.tensor([4, 4]), 9, share_prefix=False)) == 2
