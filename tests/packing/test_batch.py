"""Packed batches say where everything is."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tagrpo.packing.batch import (
    STEP,
    block_mask,
    dummy,
    pack,
    padded_lengths,
    plan_micro_batches,
    visible_blocks,
)

FEW = st.integers(0, 2)
"""Few tokens, so that prompts and responses agree at their beginnings."""
PROMPTS = st.lists(st.lists(FEW, min_size=1, max_size=9), min_size=1, max_size=4)
RESPONSES = st.lists(
    st.tuples(st.integers(0, 3), st.lists(FEW, min_size=1, max_size=9)), min_size=1, max_size=7
)


def tensors(prompts, responses):
    """Arguments of `pack`."""
    prompt = torch.tensor([p % len(prompts) for p, _ in responses])
    return [torch.tensor(ids) for ids in prompts], prompt, [torch.tensor(ids) for _, ids in responses]


def encoded(prompts, prompt, responses):
    """Every prompt with its response, but for the last token."""
    return [
        [*prompts[p].tolist(), *ids.tolist()[:-1]] for p, ids in zip(prompt.tolist(), responses, strict=True)
    ]


def prefix_of_each(packed):
    """The prefix that each packed token ends, from what a token sees."""
    tokens, ends = packed.input_ids[0].tolist(), packed.ends.tolist()
    return [tuple(tokens[k] for k in range(q + 1) if q < ends[k]) for q in range(len(tokens))]


def test_a_batch_is_packed_token_by_token():
    prompts, prompt = [torch.tensor([7, 8]), torch.tensor([7, 9])], torch.tensor([1, 0, 1, 0])
    responses = [torch.tensor(ids) for ids in ([1], [2, 3], [1, 5], [2, 3, 4])]
    packed = pack(prompts, prompt, responses)
    #  7 ── 8 ── 2 ── 3        the last tokens 3 and 4, 1 and 5 are not packed
    #   └── 9 ── 1
    assert packed.input_ids.tolist() == [[7, 8, 2, 3, 9, 1]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 3, 1, 2]]
    assert packed.ends.tolist() == [6, 4, 4, 4, 6, 6]
    assert packed.rows.tolist() == [0, 1, 2, 3]
    assert packed.lengths.tolist() == [1, 2, 2, 3]
    assert packed.response.tolist() == [0, 1, 1, 2, 2, 3, 3, 3]
    assert packed.targets.tolist() == [1, 2, 3, 1, 5, 2, 3, 4]
    assert packed.predictors.tolist() == [4, 1, 2, 4, 5, 1, 2, 3]
    assert packed.states.tolist() == [1, 2, 3, 4, 5]
    assert packed.predicted.state.tolist() == [3, 0, 1, 3, 4, 0, 1, 2]
    assert packed.predicted.order.tolist() == [1, 5, 2, 6, 7, 0, 3, 4]
    assert packed.predicted.before.tolist() == [0, 2, 4, 5, 7, 8]


def test_a_state_predicts_all_that_follows_it():
    packed = pack([torch.tensor([7])], torch.tensor([0, 0, 0]), [torch.tensor([t]) for t in (3, 1, 3)])
    assert packed.input_ids.tolist() == [[7]]
    assert packed.states.tolist() == [0]
    assert packed.predicted.tokens.tolist() == [3, 1, 3]
    assert packed.predicted.state.tolist() == [0, 0, 0]
    assert packed.predicted.before.tolist() == [0, 3]


@given(PROMPTS, RESPONSES, st.randoms())
def test_a_token_sees_what_stands_before_it_in_its_sequence(prompts, responses, random):
    arguments = tensors(prompts, responses)
    rows = random.sample(range(len(responses)), random.randint(1, len(responses)))
    packed = pack(*arguments, torch.tensor(rows))
    sequences = [encoded(*arguments)[row] for row in rows]
    prefixes = prefix_of_each(packed)
    distinct = {tuple(ids[: end + 1]) for ids in sequences for end in range(len(ids))}
    assert sorted(prefixes) == sorted(distinct)  # each once
    assert packed.work == (len(distinct), len(packed.states), sum(map(len, distinct)))
    assert packed.position_ids[0].tolist() == [len(prefix) - 1 for prefix in prefixes]
    read = zip(packed.response.tolist(), packed.predictors.tolist(), packed.targets.tolist(), strict=True)
    found = [(rows[response], prefixes[row], target) for response, row, target in read]
    assert found == [
        (row, (*prompts[responses[row][0] % len(prompts)], *responses[row][1][:place]), token)
        for row in rows
        for place, token in enumerate(responses[row][1])
    ]


@given(PROMPTS, RESPONSES)
def test_blocks_show_every_token_what_it_may_see(prompts, responses):
    packed = pack(*tensors(prompts, responses))
    blocks, slots = packed.blocks
    outputs = []
    for block in blocks:
        n, size = block.queries.shape
        for row in range(n):
            for place in range(size):
                if block.mask is None:
                    keys = block.keys[row, : place + 1]
                else:
                    keys = block.keys[row][block.mask[row if len(block.mask) > 1 else 0, 0, place]]
                outputs.append((int(block.queries[row, place]), keys.tolist()))
    ends = packed.ends.tolist()
    assert len(set(slots.tolist())) == len(slots) == len(ends)
    assert [outputs[slot] for slot in slots.tolist()] == [
        (q, [k for k in range(q + 1) if q < ends[k]]) for q in range(len(ends))
    ]


def test_pairs_of_long_responses_are_counted_exactly():
    packed = pack([torch.zeros(1, dtype=torch.long)], torch.tensor([0]), [torch.arange(10_001)])
    assert packed.work.pairs == 50_015_001  # more than float32 counts


def test_blocks_have_few_shapes():
    heads = [torch.arange(n) for n in (4, 6, 9)]
    bodies = [torch.arange(start, start + n) for start, n in ((10, 9), (30, 7), (50, 10), (70, 13), (90, 14))]
    blocks, _ = pack(heads, torch.tensor([0, 0, 1, 1, 2]), bodies).blocks
    # The prompts begin alike. In order: 22 tokens; 15, of which 9 are new; 18, 12 new; 12, 8 new; 10, 6 new.
    shapes = [(*block.queries.shape, block.keys.shape[1], block.mask is None) for block in blocks]
    assert sorted(shapes) == [
        (1, 8, 11, False),
        (1, 8, 15, False),
        (1, 11, 15, False),
        (1, 15, 20, False),
        (1, 27, 27, True),
    ]
    bodies = [torch.arange(start, start + 7) for start in (10, 30, 50)]
    blocks, _ = pack(heads[:1], torch.tensor([0, 0, 0]), bodies).blocks
    shapes = sorted((*block.queries.shape, block.keys.shape[1]) for block in blocks)
    assert shapes == [(1, 11, 11), (2, 8, 11)]
    assert [len(block.mask) for block in blocks if block.mask is not None] == [1]  # one for both runs


@pytest.mark.parametrize(
    ("head", "alike", "longer", "masks"),
    [
        (3, 16, 0, [None, 1]),
        (3, 16, 1, [None, 1, 1]),
        (3, 15, 1, [None, 16]),
        (1, 16, 0, [None, 1]),
    ],
)
def test_many_runs_that_share_equally_much_share_one_mask(head, alike, longer, masks):
    # The first response is a run without shared tokens; `alike` share the prompt, `longer` one token more.
    starts = list(range(10, 11 + alike)) + [10 + alike] * longer
    bodies = [torch.tensor([start, 2 + row, *range(row % 3)]) for row, start in enumerate(starts)]
    blocks, _ = pack([torch.arange(head)], torch.zeros(len(bodies), dtype=torch.long), bodies).blocks
    assert [None if block.mask is None else len(block.mask) for block in blocks] == masks
    sizes = [1, alike, longer] if len(masks) == 3 else [1, alike + longer]
    assert [len(block.queries) for block in blocks] == sizes


def test_the_mask_of_one_block_has_a_second_one_without_tokens():
    mask = block_mask(torch.full((3,), 3))
    assert mask.kv_num_blocks.tolist() == [[[1, 0]]]
    assert mask.kv_indices.shape == (1, 1, 2, 2)
    assert mask.full_kv_num_blocks.tolist() == [[[0, 0]]]
    mask = block_mask(torch.full((256,), 256))
    assert mask.kv_num_blocks.tolist() == [[[1, 1]]]
    assert mask.full_kv_num_blocks.tolist() == [[[0, 1]]]
    assert mask.kv_indices.shape == mask.full_kv_indices.shape == (1, 1, 2, 2)


@given(PROMPTS, RESPONSES, st.sampled_from([1, 2, 4]))
def test_blocks_of_the_grid_are_skipped_and_unmasked_where_they_can_be(prompts, responses, size):
    ends = pack(*tensors(prompts, responses)).ends
    length = len(ends)
    places = torch.arange(length)
    sees = (places <= places[:, None]) & (places[:, None] < ends)
    some, full = visible_blocks(ends, size)
    for row in range(len(some)):
        for column in range(len(some)):
            part = sees[row * size : (row + 1) * size, column * size : (column + 1) * size]
            assert bool(some[row, column]) == bool(part.any())
            whole = bool(part.all()) and column < row and (row + 1) * size <= length
            assert bool(full[row, column]) == whole


def test_nothing_to_pack_and_empty_sequences_are_refused():
    one = torch.ones(1, dtype=torch.long)
    with pytest.raises(ValueError, match="one response"):
        pack([one], torch.tensor([0]), [one], torch.tensor([], dtype=torch.long))
    with pytest.raises(ValueError, match="response 1"):
        pack([one], torch.tensor([0, 0]), [one, one[:0]])
    with pytest.raises(ValueError, match="response 0"):
        pack([one[:0]], torch.tensor([0]), [one])
    with pytest.raises(ValueError, match="response 1 "):
        pack([one], torch.tensor([0, 0, 0]), [one, one[:0], one[:0]])


def test_a_rank_without_responses_packs_three_tokens_and_no_rows():
    packed = dummy()
    assert packed.input_ids.tolist() == [[0, 0, 0]]
    assert packed.rows.tolist() == []


def test_a_batch_moves_with_all_tensors_but_those_that_the_cpu_reads():
    packed = pack([torch.tensor([7])], torch.tensor([0]), [torch.tensor([1])], torch.tensor([0]))
    moved = packed.to("meta")
    assert pack([torch.tensor([7])], torch.tensor([0]), [torch.tensor([1])], device="meta").input_ids.is_meta
    fields = {name: value for name, value in vars(moved).items() if isinstance(value, torch.Tensor)}
    assert {name for name, value in fields.items() if not value.is_meta} == {"rows", "lengths"}
    predicted = moved.predicted._asdict()
    assert {name for name, value in predicted.items() if not value.is_meta} == {"before"}
    assert moved.paths is packed.paths
    assert packed.blocks is packed.blocks  # made once
    with pytest.raises(FrozenInstanceError):
        packed.lengths = None


@pytest.mark.parametrize(
    ("length", "padded"), [(1, 8), (8, 8), (9, 11), (11, 11), (12, 15), (16, 20), (21, 27), (28, 36)]
)
def test_lengths_are_padded_to_a_grid(length, padded):
    assert padded_lengths(torch.tensor([length, 1])).tolist() == [padded, 8]
    assert length <= padded < max(9, length * STEP + 1)


@given(PROMPTS, RESPONSES | st.just([]), st.integers(1, 60))
def test_every_response_is_planned_once_and_within_the_budget(prompts, responses, budget):
    heads, prompt, bodies = tensors(prompts, responses)
    plan = plan_micro_batches(heads, prompt.long(), bodies, budget)
    assert sorted(row for part in plan for row in part.tolist()) == list(range(len(responses)))
    for part in plan:
        assert pack(heads, prompt, bodies, part).input_ids.numel() <= budget or len(part) == 1


@given(PROMPTS, RESPONSES | st.just([]), st.integers(1, 120))
def test_without_sharing_a_padded_batch_keeps_the_budget(prompts, responses, budget):
    heads, prompt, bodies = tensors(prompts, responses)
    plan = plan_micro_batches(heads, prompt.long(), bodies, budget, share_prefix=False)
    assert sorted(row for part in plan for row in part.tolist()) == list(range(len(responses)))
    lengths = [len(ids) for ids in encoded(heads, prompt, bodies)]
    for part in plan:
        assert len(part) * max(lengths[row] for row in part) <= budget or len(part) == 1


def test_without_sharing_the_longest_responses_come_first_and_fill_rectangles():
    bodies = [torch.zeros(length, dtype=torch.long) for length in (3, 5, 4, 3, 4, 3)]
    plan = plan_micro_batches(
        [torch.zeros(1, dtype=torch.long)], torch.zeros(6, dtype=torch.long), bodies, 9, share_prefix=False
    )
    assert [part.tolist() for part in plan] == [[1], [2, 4], [0, 3, 5]]


def test_responses_of_a_prompt_stay_together_if_they_fit():
    heads = [torch.arange(10), torch.arange(50, 60)]
    bodies = [torch.arange(start, start + 6) for start in (100, 200, 300, 400)]
    plan = plan_micro_batches(heads, torch.tensor([0, 1, 0, 1]), bodies, 20)
    assert [part.tolist() for part in plan] == [[0, 2], [1, 3]]
    assert len(plan_micro_batches(heads, torch.tensor([0, 1, 0, 1]), bodies, 19)) == 4
    assert len(plan_micro_batches(heads, torch.tensor([0, 1, 0, 1]), bodies, 40)) == 1
    assert len(plan_micro_batches(heads, torch.tensor([0, 1, 0, 1]), bodies, 60, share_prefix=False)) == 1
    assert len(plan_micro_batches(heads, torch.tensor([0, 1, 0, 1]), bodies, 59, share_prefix=False)) == 2
