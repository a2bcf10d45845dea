"""Packing: concatenated responses without padding, each distinct prompt once, before its responses.

Prompts attend to themselves, each response to its prompt and to itself, in the two forms that attention
kernels take. `padded_blocks` is for SDPA: sequences of about one length, side by side, padded to a length
that follows from each sequence's own, so that its neighbours change no bit of its attention. `block_mask` is
for FlexAttention: a sparse grid over the packed tokens in their order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

STEP = 4 / 3
"""Ratio of each padded length to the one before. Padding adds cost in attention alone."""


class Span(NamedTuple):
    """Position of a response and its prompt in the packed tokens."""

    prompt: int
    prompt_length: int
    start: int
    length: int


class AttentionBlock(NamedTuple):
    """n sequences of queries, padded to one length; indices are rows of the packed tokens."""

    queries: Tensor
    """[n, Lq] long; padding repeats the first row, whose output is never read."""
    keys: Tensor
    """[n, Lk] long; the last Lq of them are the rows of the queries."""
    mask: Tensor | None
    """[n or 1, 1, Lq, Lk] bool, true if a query sees a key; None if Lq = Lk and the mask is causal."""


@dataclass(frozen=True, kw_only=True)
class PackedBatch:
    """L tokens of distinct prompts and their r responses, T of them response tokens."""

    input_ids: Tensor
    """[1, L] long."""
    position_ids: Tensor
    """[1, L] long; positions of a response continue those of its prompt."""
    prompt: Tensor
    """[L] long, non-decreasing: prompt of each prompt or response token, numbered within the batch."""
    owner: Tensor
    """[L] long: number of each token's response within the batch; −1 for tokens of prompts.

    A token sees the tokens before it that have the same prompt, and no owner or the same owner."""
    targets: Tensor
    """[T] long: response tokens, responses end to end in the order of `rows`."""
    predictors: Tensor
    """[T] long: packed row of the hidden state that predicts each target."""
    response: Tensor
    """[T] long, non-decreasing: row of each target's response in `rows`."""
    lengths: Tensor
    """[r] long: tokens per response."""
    rows: Tensor
    """[r] long, on the CPU: rows of these responses among the caller's."""
    spans: Sequence[Span]
    """[r] positions of each response and its prompt, in the order of `rows`."""

    def to(self, device: torch.device | str) -> PackedBatch:
        """Move all tensors but `rows` and `lengths`, which the CPU reads."""
        names = {field.name for field in fields(self)} - {"rows", "lengths", "spans"}
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    @cached_property
    def blocks(self) -> tuple[list[AttentionBlock], Tensor]:
        """Attention blocks for SDPA, and [L] long, place of each token's output among their outputs."""
        blocks, slots = padded_blocks(self.spans)
        device = self.input_ids.device
        moved = [AttentionBlock._make(x if x is None else x.to(device) for x in block) for block in blocks]
        return moved, slots.to(device)

    @cached_property
    def block_mask(self) -> BlockMask:
        """Block mask for FlexAttention."""
        return block_mask(self.prompt, self.owner)


def pack(
    prompts: Sequence[Tensor], prompt: Tensor, responses: Sequence[Tensor], rows: Tensor | None = None
) -> PackedBatch:
    """Pack the responses `rows` with their prompts, each prompt once.

    Args:
        prompts: [S] of [L_s] long, none empty.
        prompt: [R] long, row of each response's prompt.
        responses: [R] of [T_r] long, none empty.
        rows: [r] long, responses to pack, at least one; None packs all.

    Raises:
        ValueError: no rows, or an empty prompt or response.
    """
    shared = prompt.tolist()
    order = sorted(
        range(len(responses)) if rows is None else rows.tolist(), key=lambda row: (shared[row], row)
    )
    if not order:
        raise ValueError("Expected at least one response to pack, but got none.")
    pieces: list[tuple[Tensor, int, int, int]] = []  # tokens, position of the first, prompt, owner
    spans: list[Span] = []
    previous = None
    start = 0
    size = 0
    count = -1
    for owner, row in enumerate(order):
        head = prompts[shared[row]]
        body = responses[row]
        if not len(head) or not len(body):
            raise ValueError(
                f"Expected prompts and responses of at least one token, but response {row} or its prompt has none."
            )
        if shared[row] != previous:
            previous = shared[row]
            start = size
            count += 1
            pieces.append((head, 0, count, -1))
            size += len(head)
        pieces.append((body, len(head), count, owner))
        spans.append(Span(start, len(head), size, len(body)))
        size += len(body)
    tokens, _, prompts_of, owners = zip(*pieces, strict=True)
    sizes = torch.tensor([len(ids) for ids in tokens])
    lengths = torch.tensor([span.length for span in spans])
    predictors = torch.cat([torch.arange(span.start - 1, span.start + span.length - 1) for span in spans])
    predictors[lengths.cumsum(0) - lengths] = torch.tensor(
        [span.prompt + span.prompt_length - 1 for span in spans]
    )
    return PackedBatch(
        input_ids=torch.cat(tokens)[None],
        position_ids=torch.cat([torch.arange(len(ids)) + first for ids, first, _, _ in pieces])[None],
        prompt=torch.tensor(prompts_of).repeat_interleave(sizes),
        owner=torch.tensor(owners).repeat_interleave(sizes),
        targets=torch.cat([responses[row] for row in order]),
        predictors=predictors,
        response=torch.repeat_interleave(lengths),
        lengths=lengths,
        rows=torch.tensor(order),
        spans=spans,
    )


def plan_micro_batches(
    prompt_lengths: Tensor,
    prompt: Tensor,
    response_lengths: Tensor,
    token_budget: int,
    share_prefix: bool = True,
) -> list[Tensor]:
    """Cut responses into micro-batches of at most `token_budget` tokens (first-fit decreasing).

    Responses to one prompt stay together if they fit; otherwise the prompt is encoded again in each part. A
    single response that exceeds the budget with its prompt gets a micro-batch of its own.

    Args:
        prompt_lengths: [S] long, tokens per distinct prompt.
        prompt: [R] long, row of each response's prompt.
        response_lengths: [R] long, tokens per response.
        token_budget: Distinct prompt tokens plus response tokens. Without sharing: tokens of a padded batch.
        share_prefix: Whether a prompt is encoded once for all its responses.

    >>> lengths, prompt, responses = torch.tensor([4, 4]), torch.tensor([0, 0, 1]), torch.tensor([2, 2, 3])
    >>> [part.tolist() for part in plan_micro_batches(lengths, prompt, responses, 10)]
    [[0, 1], [2]]
    """
    own = response_lengths.tolist()
    heads = prompt_lengths[prompt].tolist()
    if share_prefix:
        groups: dict[int, list[int]] = {}
        for row, shared in enumerate(prompt.tolist()):
            groups.setdefault(shared, []).append(row)
        pieces: list[tuple[int, list[int]]] = []
        for rows in groups.values():
            pieces += _pieces(rows, heads[rows[0]], own, token_budget)
        parts = _first_fit_decreasing(pieces, token_budget)
    else:
        parts = _rectangles([head + length for head, length in zip(heads, own, strict=True)], token_budget)
    return [torch.tensor(sorted(rows), dtype=torch.long) for rows in parts]


def _pieces(
    rows: Sequence[int], head: int, lengths: Sequence[int], budget: int
) -> list[tuple[int, list[int]]]:
    """Cut the responses of one prompt of `head` tokens into (tokens, rows) within the budget."""
    pieces: list[tuple[int, list[int]]] = []
    size = head
    piece = list[int]()
    for row in rows:
        if piece and size + lengths[row] > budget:
            pieces.append((size, piece))
            size = head
            piece = []
        size += lengths[row]
        piece.append(row)
    return [*pieces, (size, piece)]


def _first_fit_decreasing(pieces: Sequence[tuple[int, list[int]]], budget: int) -> list[list[int]]:
    """Put (tokens, rows), largest first, each into the first bin that has room."""
    sizes: list[int] = []
    bins: list[list[int]] = []
    for size, rows in sorted(pieces, key=lambda piece: (-piece[0], piece[1])):
        index = next((index for index, used in enumerate(sizes) if used + size <= budget), len(bins))
        if index == len(bins):
            sizes.append(0)
            bins.append([])
        sizes[index] += size
        bins[index] += rows
    return bins


def _rectangles(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Cut rows, longest first, so that the number of rows times the longest is within the budget."""
    bins: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        if bins and (len(bins[-1]) + 1) * lengths[bins[-1][0]] <= budget:
            bins[-1].append(row)
        else:
            bins.append([row])
    return bins


def padded_length(length: int) -> int:
    """Return the least of 8, 11, 15, 20, … that is ≥ `length`.

    Each is `STEP` times the previous one, rounded up.
    """
    padded = 8
    while padded < length:
        padded = math.ceil(padded * STEP)
    return padded


def padded_blocks(spans: Sequence[Span]) -> tuple[list[AttentionBlock], Tensor]:
    """Return blocks in which every token is a query exactly once, and [L] long places of tokens.

    The places are those of the tokens in the blocks' outputs.
    """
    prompts = dict.fromkeys((span.prompt, span.prompt_length) for span in spans)
    by_size: dict[tuple[int, ...], list[Any]] = {}
    for prompt in prompts:
        by_size.setdefault((padded_length(prompt[1]),), []).append(prompt)
    for span in spans:
        by_size.setdefault((padded_length(span.prompt_length), padded_length(span.length)), []).append(span)
    blocks = [(_causal if len(size) == 1 else _with_prefix)(part, *size) for size, part in by_size.items()]
    slots = torch.empty(spans[-1].start + spans[-1].length, dtype=torch.long)
    offset = 0
    for block, keep in blocks:
        slots[block.queries[keep]] = offset + keep.flatten().nonzero()[:, 0]
        offset += keep.numel()
    return [block for block, _ in blocks], slots


def _causal(sequences: Sequence[tuple[int, int]], size: int) -> tuple[AttentionBlock, Tensor]:
    """Return a causal block of sequences (start, length), and [n, size] bool, false at padding."""
    starts, lengths = torch.tensor(sequences).T[:, :, None]
    columns = torch.arange(size)
    keep = columns < lengths
    rows = starts + columns * keep
    return AttentionBlock(rows, rows, None), keep


def _with_prefix(spans: Sequence[Span], prompt_size: int, size: int) -> tuple[AttentionBlock, Tensor]:
    """Return a block of responses that see their whole prompt and their own past."""
    prompts, visible = _causal([(span.prompt, span.prompt_length) for span in spans], prompt_size)
    responses, keep = _causal([(span.start, span.length) for span in spans], size)
    visible = visible[:1] if len({span.prompt_length for span in spans}) == 1 else visible  # one mask for all
    past = torch.ones(size, size, dtype=torch.bool).tril().expand(len(visible), 1, -1, -1)
    mask = torch.cat([visible[:, None, None].expand(-1, 1, size, -1), past], -1)
    return AttentionBlock(responses.queries, torch.cat([prompts.keys, responses.keys], 1), mask), keep


def block_mask(prompt: Tensor, owner: Tensor, block_size: int = 128) -> BlockMask:
    """Return FlexAttention's mask, from one number per token and block, never [L, L].

    `prompt` and `owner` are those of a `PackedBatch`. A block of keys is skipped if no query of a block sees
    any of it, and unmasked if every query sees all of it.
    """

    def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        mine = (owner[key] < 0) | (owner[key] == owner[query])
        return (query >= key) & (prompt[query] == prompt[key]) & mine

    some, full = visible_blocks(prompt, owner, block_size)
    if len(some) == 1:  # torch.compile specialises graphs on size 1; the second block has no tokens
        some, full = (F.pad(blocks, (0, 1, 0, 1)) for blocks in (some, full))
    masked = _rows_of_blocks(some & ~full)
    unmasked = _rows_of_blocks(full)
    lengths = (len(prompt), len(prompt))
    return BlockMask.from_kv_blocks(
        *masked, *unmasked, BLOCK_SIZE=block_size, mask_mod=sees, seq_lengths=lengths
    )


def visible_blocks(prompt: Tensor, owner: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Return two [M, M] bool for M blocks of queries and of keys.

    The first is true if any query sees any key, without false negatives; the second if every query sees every
    key, without false positives.
    """
    none = len(prompt)
    count = -(-len(prompt) // block_size)
    padding = count * block_size - len(prompt)

    def per_block(values: Tensor, fill: int) -> Tensor:
        return torch.cat([values, values.new_full((padding,), fill)]).view(count, block_size)

    response = owner >= 0
    first_prompt = per_block(prompt, none).amin(1)
    last_prompt = per_block(prompt, -1).amax(1)
    first_owner = per_block(torch.where(response, owner, none), none).amin(1)
    last_owner = per_block(owner, -1).amax(1)
    last_prefix = per_block(torch.where(response, -1, prompt), -1).amax(1)
    past = torch.ones(count, count, dtype=torch.bool, device=prompt.device).tril()
    some = past & ((last_prefix >= first_prompt[:, None]) | (last_owner >= first_owner[:, None]))

    whole = torch.arange(1, count + 1, device=prompt.device) * block_size <= len(prompt)
    one_prompt = whole & (first_prompt == last_prompt)
    prefix = one_prompt & (last_owner < 0)
    one_owner = whole & ~per_block(~response, 1).any(1) & (first_owner == last_owner)
    same_prompt = one_prompt[:, None] & prefix & (first_prompt[:, None] == first_prompt)
    same_owner = one_owner[:, None] & one_owner & (first_owner[:, None] == first_owner)
    return some, past.tril(-1) & (same_prompt | same_owner)


def _rows_of_blocks(dense: Tensor) -> tuple[Tensor, Tensor]:
    """Return [1, 1, M] int32 counts of true columns per row of `dense`, and [1, 1, M, M] int32 columns.

    The true columns of a row come first.
    """
    columns = dense.int().argsort(dim=-1, descending=True, stable=True)
    return dense.sum(-1, dtype=torch.int32)[None, None], columns.int()[None, None]
