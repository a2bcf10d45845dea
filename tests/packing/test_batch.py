"""Packed batches say where everything is."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tagrpo.packing.batch import STEP, pack, padded_length, plan_micro_batches


def test_a_shared_prompt_stands_once_and_a_repeated_one_before_each_response():
    prompts, prompt = [torch.tensor([7, 8, 9])], torch.tensor([0, 0])
    responses = [torch.tensor([1, 2]), torch.tensor([3])]
    shared = pack(prompts, prompt, responses, torch.arange(2))
    assert shared.input_ids.tolist() == [[7, 8, 9, 1, 2, 3]]
    assert shared.position_ids.tolist() == [[0, 1, 2, 3, 4, 3]]
    assert shared.predictors.tolist() == [2, 3, 2]
    assert shared.targets.tolist() == [1, 2, 3]
    assert shared.response.tolist() == [0, 0, 1]
    assert shared.lengths.tolist() == [2, 1]
    repeated = pack(prompts * 2, torch.arange(2), responses)
    assert repeated.input_ids.tolist() == [[7, 8, 9, 1, 2, 7, 8, 9, 3]]
    assert repeated.predictors.tolist() == [2, 3, 7]


@pytest.mark.parametrize("repeated", [False, True])
def test_a_token_sees_its_prompt_and_its_own_past_and_nothing_else(repeated):
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(9, (n,), generator=generator) for n in (4, 9, 1)]
    responses = [torch.randint(9, (n,), generator=generator) for n in (1, 20, 3, 8, 2, 5)]
    prompt = torch.tensor([0, 1, 2, 1, 0, 1])
    if repeated:
        prompts, prompt = [prompts[p] for p in prompt], torch.arange(6)
    batch = pack(prompts, prompt, responses)

    # Packed order by hand: (prompt, response or None for a shared prompt's own tokens) of each token.
    order = sorted(range(6), key=lambda r: (int(prompt[r]), r))
    owners = []
    for i, r in enumerate(order):
        p = int(prompt[r])
        if i == 0 or p != int(prompt[order[i - 1]]):
            owners += [(p, None)] * len(prompts[p])
        owners += [(p, r)] * len(responses[r])
    expected = {
        (q, k)
        for q, (prompt_q, response_q) in enumerate(owners)
        for k, (prompt_k, response_k) in enumerate(owners)
        if k <= q and prompt_q == prompt_k and response_k in (None, response_q)
    }

    found, slot = set(), 0
    blocks, slots = batch.blocks
    slot_of = {slot: token for token, slot in enumerate(slots.tolist())}
    for queries, keys, mask in blocks:
        size = queries.shape[1]
        mask = torch.ones(size, size, dtype=torch.bool).tril()[None, None] if mask is None else mask
        for row, visible in enumerate(mask[:, 0].expand(len(queries), -1, -1)):
            for column in range(size):
                if slot in slot_of:
                    assert slot_of[slot] == queries[row, column]
                    found |= {(slot_of[slot], k) for k in keys[row][visible[column]].tolist()}
                slot += 1
    assert found == expected


def test_every_token_is_the_query_of_one_slot():
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(9, (n,), generator=generator) for n in (4, 9, 1)]
    responses = [torch.randint(9, (n,), generator=generator) for n in (1, 20, 3, 8, 2, 5)]
    batch = pack(prompts, torch.tensor([0, 1, 2, 1, 0, 1]), responses, torch.arange(6))
    blocks, slots = batch.blocks
    queries = torch.cat([block.queries.flatten() for block in blocks])
    assert queries[slots].tolist() == list(range(batch.input_ids.shape[1]))
    assert len(set(slots.tolist())) == len(slots)


def test_nothing_to_pack_and_empty_sequences_are_refused():
    one = torch.ones(1, dtype=torch.long)
    with pytest.raises(ValueError, match="one response"):
        pack([one], torch.tensor([0]), [one], torch.tensor([], dtype=torch.long))
    with pytest.raises(ValueError, match="response 0"):
        pack([one], torch.tensor([0]), [one[:0]], torch.tensor([0]))
    with pytest.raises(ValueError, match="response 0"):
        pack([one[:0]], torch.tensor([0]), [one], torch.tensor([0]))


def test_two_prompts_are_packed_token_by_token():
    prompts, prompt = [torch.tensor([7, 8]), torch.tensor([9])], torch.tensor([1, 0, 1])
    responses = [torch.tensor([1]), torch.tensor([2, 3]), torch.tensor([4, 5])]
    packed = pack(prompts, prompt, responses, torch.tensor([2, 0, 1]))
    assert packed.input_ids.tolist() == [[7, 8, 2, 3, 9, 1, 4, 5]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 3, 0, 1, 1, 2]]
    assert packed.prompt.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert packed.owner.tolist() == [-1, -1, 0, 0, -1, 1, 2, 2]
    assert packed.rows.tolist() == [1, 0, 2]
    assert packed.targets.tolist() == [2, 3, 1, 4, 5]
    assert packed.predictors.tolist() == [1, 2, 4, 4, 6]
    assert packed.response.tolist() == [0, 0, 1, 2, 2]
    assert packed.lengths.tolist() == [2, 1, 2]
    assert packed.spans == [(0, 2, 2, 2), (4, 1, 5, 1), (4, 1, 6, 2)]
    repeated = pack([prompts[1]] * 3, torch.arange(3), responses, torch.tensor([0, 2]))
    assert repeated.prompt.tolist() == [0, 0, 1, 1, 1]
    assert repeated.owner.tolist() == [-1, 0, -1, 1, 1]


def test_a_batch_moves_with_all_tensors_but_its_rows_and_lengths():
    packed = pack([torch.tensor([7])], torch.tensor([0]), [torch.tensor([1])], torch.tensor([0]))
    moved = packed.to("meta")
    kept = {
        name for name, value in vars(moved).items() if isinstance(value, torch.Tensor) and not value.is_meta
    }
    assert kept == {"rows", "lengths"}
    assert {name for name, value in vars(moved).items() if isinstance(value, torch.Tensor)} > {
        "rows",
        "targets",
    }
    assert moved.spans == packed.spans
    assert packed.blocks is packed.blocks  # made once
    with pytest.raises(FrozenInstanceError):
        packed.lengths = None
    with pytest.raises(TypeError):
        type(packed)(*vars(moved).values())


def seen_by(blocks, slots):
    """Token → the tokens that it sees, from the blocks of attention."""
    outputs = []
    for block in blocks:
        n, size = block.queries.shape
        for row in range(n):
            for place in range(size):
                if block.mask is None:
                    keys = block.keys[row, : place + 1]
                else:
                    keys = block.keys[row][block.mask[row if len(block.mask) > 1 else 0, 0, place]]
                outputs.append((int(block.queries[row, place]), sorted(keys.tolist())))
    return [outputs[slot] for slot in slots.tolist()]


@given(
    heads=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    responses=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=7),
)
@settings(max_examples=60)
def test_blocks_show_every_token_what_it_may_see(heads, responses):
    prompt = torch.tensor([p % len(heads) for p, _ in responses])
    tokens = [torch.arange(length) for _, length in responses]
    packed = pack([torch.arange(n) for n in heads], prompt, tokens, torch.arange(len(responses)))
    blocks, slots = packed.blocks
    owner, of = packed.owner.tolist(), packed.prompt.tolist()
    expected = [
        (q, [k for k in range(q + 1) if of[k] == of[q] and owner[k] in (-1, owner[q])])
        for q in range(len(owner))
    ]
    assert seen_by(blocks, slots) == expected
    lengths = {1: 8, 8: 8, 9: 11}  # of prompts and responses as drawn here
    assert {block.queries.shape[1] for block in blocks} <= set(lengths.values())
    assert all(block.keys.shape[1] in (8, 8 + 8, 8 + 11) for block in blocks)


def test_the_shape_of_attention_follows_from_a_sequence_alone():
    heads = [torch.arange(n) for n in (4, 6, 9)]
    responses = [torch.arange(n) for n in (8, 6, 9, 12, 13)]
    blocks, _ = pack(heads, torch.tensor([0, 0, 1, 1, 2]), responses).blocks
    shapes = [(tuple(block.queries.shape), block.keys.shape[1]) for block in blocks]
    # Prompts of 4 and 6, of 9; responses of 8 and 6, of 9, of 12, of 13, which answers the longest prompt.
    assert shapes == [((2, 8), 8), ((1, 11), 11), ((2, 8), 16), ((1, 11), 19), ((1, 15), 23), ((1, 15), 26)]
    assert [len(block.mask) for block in blocks[2:]] == [
        1,
        1,
        1,
        1,
    ]  # prompts of one length: one mask for all


@pytest.mark.parametrize(
    ("length", "padded"), [(1, 8), (8, 8), (9, 11), (11, 11), (12, 15), (16, 20), (21, 27), (28, 36)]
)
def test_lengths_are_padded_to_a_grid(length, padded):
    assert padded_length(length) == padded
    assert length <= padded < max(9, length * STEP + 1)


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
    plan = plan_micro_batches(
        torch.tensor([10, 10]), torch.tensor([0, 1, 0, 1]), torch.tensor([5, 5, 5, 5]), 20
    )
    assert [part.tolist() for part in plan] == [[0, 2], [1, 3]]


def test_a_budget_that_is_met_exactly_is_not_left():
    heads = torch.tensor([1, 1])
    plan = plan_micro_batches(heads, torch.tensor([0, 1]), torch.tensor([4, 4]), 10)
    assert [part.tolist() for part in plan] == [[0, 1]]
    assert len(plan_micro_batches(heads, torch.tensor([0, 1]), torch.tensor([4, 4]), 9)) == 2
    plan = plan_micro_batches(heads, torch.tensor([0, 1]), torch.tensor([4, 4]), 10, share_prefix=False)
    assert [part.tolist() for part in plan] == [[0, 1]]
    assert (
        len(plan_micro_batches(heads, torch.tensor([0, 1]), torch.tensor([4, 4]), 9, share_prefix=False)) == 2
    )
