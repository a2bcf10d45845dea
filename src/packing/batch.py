"""Packing of prompts and responses: each distinct prefix once, without padding.

The packed tokens are a walk through a tree of prefixes. A token attends to itself and to the tokens before it
in its sequence. Attention kernels take this mask in two forms: `padded_blocks`, runs of similar length side
by side, is for SDPA; `block_mask`, a sparse grid over the packed tokens, is for FlexAttention. The last token
of a response predicts nothing and is not packed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from .head import Targets
from .tree import Array, PrefixTree, within

MANY = 16
"""Smallest number of runs that get a separate block, to save memory for masks."""

STEP = 4 / 3
"""Ratio of each padded length to the next smaller one. Padding adds cost only in attention."""


class Paths(NamedTuple):
    """Tokens of r sequences in a tree of prefixes, with the sequences in lexicographic order. On the CPU."""

    rows: Tensor
    """[N] long: packed rows of the tokens of all sequences, including tokens that sequences share."""
    lengths: Tensor
    """[r] long: tokens per sequence."""
    shared: Tensor
    """[r] long: tokens shared with the previous sequence; the other tokens of a sequence are its run."""
    of_response: Tensor
    """[r] long: sequence of each response of the batch."""


class AttentionBlock(NamedTuple):
    """n runs as queries, padded to the same length; indices are rows of the packed tokens."""

    queries: Tensor
    """[n, Lq] long; padding repeats a row, whose output is never read."""
    keys: Tensor
    """[n, Lk] long, beginning with the first token of each sequence."""
    mask: Tensor | None
    """[n or 1, 1, Lq, Lk] bool, true if a query sees a key; None if Lq = Lk and the mask is causal."""


class Work(NamedTuple):
    """Counts that determine the FLOP of a forward pass."""

    tokens: int
    """Packed tokens."""
    states: int
    """Hidden states that the output head is applied to."""
    pairs: int
    """Pairs of a query token and a key token that the query attends to."""


@dataclass(frozen=True, kw_only=True)
class PackedBatch:
    """r responses of T tokens, packed with their prompts into L distinct prefixes."""

    input_ids: Tensor
    """[1, L] long."""
    position_ids: Tensor
    """[1, L] long, the number of tokens before each token in its sequence."""
    ends: Tensor
    """[L] long: token q sees token k if k ≤ q < ends[k]."""
    states: Tensor
    """[S] long, ascending: packed rows whose hidden states predict response tokens."""
    predicted: Targets
    """Response tokens, concatenated in the order of `rows`, and the states that predict them."""
    response: Tensor
    """[T] long, non-decreasing: row of each response token's response in `rows`."""
    lengths: Tensor
    """[r] long, on the CPU: tokens per response."""
    rows: Tensor
    """[r] long, on the CPU: row of each response among the caller's responses."""
    paths: Paths
    """Packed rows of each prompt with its response, without the last token of the response."""

    @property
    def work(self) -> Work:
        """Counts that determine the least FLOP of a forward pass."""
        lengths, shared = self.paths.lengths, self.paths.shared
        # The token at depth d sees d + 1 tokens; a sequence adds those from `shared` on.
        pairs = (lengths * (lengths + 1) - shared * (shared + 1)) // 2
        return Work(self.input_ids.shape[1], len(self.states), int(pairs.sum()))

    def to(self, device: torch.device | str) -> PackedBatch:
        """Move all tensors except `lengths`, `rows` and `paths`, which stay on the CPU."""
        kept = {"lengths", "rows", "paths"}
        names = {field.name for field in fields(self)} - kept
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    @property
    def targets(self) -> Tensor:
        """[T] long, response tokens."""
        return self.predicted.tokens

    @property
    def predictors(self) -> Tensor:
        """[T] long, packed row of the hidden state that predicts each response token."""
        return self.states[self.predicted.state]

    @cached_property
    def blocks(self) -> tuple[list[AttentionBlock], Tensor]:
        """Attention blocks for SDPA, and the place of each token in their concatenated outputs, [L] long."""
        blocks, slots = padded_blocks(self.paths)
        device = self.input_ids.device
        moved = [AttentionBlock._make(x if x is None else x.to(device) for x in block) for block in blocks]
        return moved, slots.to(device)

    @cached_property
    def block_mask(self) -> BlockMask:
        """Block mask for FlexAttention."""
        return block_mask(self.ends)


def pack(
    prompts: Sequence[Tensor],
    prompt: Tensor,
    responses: Sequence[Tensor],
    rows: Tensor | None = None,
    device: torch.device | str = "cpu",
) -> PackedBatch:
    """Pack the responses `rows` with their prompts, each distinct prefix once.

    Args:
        prompts: [S] of [L_s] long, none empty, on the CPU.
        prompt: [R] long, row of each response's prompt.
        responses: [R] of [T_r] long, none empty, on the CPU.
        rows: [r] long, responses to pack, at least one; None packs all.
        device: Device of the batch.

    Raises:
        ValueError: if there are no rows, or a prompt or response is empty.
    """
    rows = torch.arange(len(responses)) if rows is None else rows
    if not len(rows):
        raise ValueError("Expected at least one response to pack, but got none.")
    heads = [prompts[row] for row in prompt[rows].tolist()]
    bodies = [responses[row] for row in rows.tolist()]
    sequences = Sequences.of(heads, bodies)
    if not sequences.heads.all() or not sequences.bodies.all():
        empty = rows[torch.from_numpy((sequences.heads == 0) | (sequences.bodies == 0))]
        raise ValueError(
            "Expected prompts and responses of at least one token, but response "
            f"{int(empty[0])} or its prompt has none."
        )
    tree = sequences.tree()
    places = tree.paths()
    is_new = tree.is_new()
    of_response = np.empty(len(rows), dtype=np.int64)
    of_response[tree.order] = np.arange(len(rows))
    # The last token of a prompt predicts the first one of the response, and so on.
    first = (tree.lengths.cumsum() - tree.lengths)[of_response] + sequences.heads - 1
    predictors = places[first.repeat(sequences.bodies) + within(sequences.bodies)]
    states, predicted = Targets.of(torch.cat(bodies), torch.from_numpy(predictors))
    lengths = torch.from_numpy(sequences.bodies)
    packed = PackedBatch(
        input_ids=torch.from_numpy(tree.tokens[is_new])[None],
        position_ids=torch.from_numpy(tree.depths[is_new])[None],
        ends=torch.from_numpy(tree.subtree_ends(places)),
        states=states,
        predicted=predicted,
        response=torch.repeat_interleave(lengths),
        lengths=lengths,
        rows=rows,
        paths=Paths(*map(torch.from_numpy, (places, tree.lengths, tree.shared, of_response))),
    )
    return packed if torch.device(device).type == "cpu" else packed.to(device)


def dummy(device: torch.device | str = "cpu") -> PackedBatch:
    """Return a batch of a few tokens without rows, for a rank that only joins the forwards of other ranks."""
    tokens = torch.zeros(2, dtype=torch.long)
    return replace(pack([tokens], tokens[:1], [tokens], device=device), rows=tokens[:0])


class Sequences(NamedTuple):
    """Concatenated prompts and responses, without the last token of each response."""

    tokens: Array
    """[N] tokens."""
    heads: Array
    """[r] tokens per prompt."""
    bodies: Array
    """[r] tokens per response, including the last token."""

    @classmethod
    def of(cls, prompts: Sequence[Tensor], responses: Sequence[Tensor]) -> Sequences:
        """Concatenate r prompts with their responses, none of which is empty."""
        heads = np.array([ids.numel() for ids in prompts], dtype=np.int64)
        bodies = np.array([ids.numel() for ids in responses], dtype=np.int64)
        tokens = torch.cat([ids for pair in zip(prompts, responses, strict=True) for ids in pair]).numpy()
        lasts = (heads + bodies).cumsum() - 1
        return cls(np.delete(tokens, lasts), heads, bodies)

    def tree(self) -> PrefixTree:
        """Return the tree of the sequences' prefixes."""
        return PrefixTree(self.tokens, self.heads + self.bodies - 1)


def plan_micro_batches(
    prompts: Sequence[Tensor],
    prompt: Tensor,
    responses: Sequence[Tensor],
    token_budget: int,
    share_prefix: bool = True,
) -> list[Tensor]:
    """Cut responses into micro-batches of at most `token_budget` tokens.

    Responses that share prefixes stay together if they fit (`PrefixTree.cut`). A single response that exceeds
    the budget with its prompt gets a micro-batch of its own.

    Args:
        prompts: [S] of [L_s] long, on the CPU.
        prompt: [R] long, row of each response's prompt.
        responses: [R] of [T_r] long, on the CPU.
        token_budget: Largest number of distinct prefixes of prompts and responses, or of tokens of a padded
            batch if prefixes are not shared.
        share_prefix: Whether each distinct prefix is encoded once.

    >>> prompts, responses = [torch.tensor([7, 8, 9])], [torch.tensor([1, 2]), torch.tensor([4, 5, 6]), torch.tensor([1, 3])]
    >>> [part.tolist() for part in plan_micro_batches(prompts, torch.tensor([0, 0, 0]), responses, 5)]
    [[1], [0, 2]]
    """
    if not len(responses):
        return []
    sequences = Sequences.of([prompts[row] for row in prompt.tolist()], responses)
    if len(sequences.tokens) <= token_budget and share_prefix:
        groups = [list(range(len(responses)))]  # they fit even if they share nothing
    elif share_prefix:
        groups = sequences.tree().cut(token_budget)
    else:
        lengths = (sequences.heads + sequences.bodies - 1).tolist()
        groups = [sorted(rows) for rows in _rectangles(lengths, token_budget)]
    return [torch.tensor(rows, dtype=torch.long) for rows in groups]


def _rectangles(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Group rows, longest first, so that each group's number of rows times its longest fits the budget."""
    bins: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        if bins and (len(bins[-1]) + 1) * lengths[bins[-1][0]] <= budget:
            bins[-1].append(row)
        else:
            bins.append([row])
    return bins


def padded_lengths(lengths: Tensor) -> Tensor:
    """Round each of `lengths` ([n] long) up to a length of the grid 8, 11, 15, 20 and so on.

    Each grid length is `STEP` times the previous grid length, rounded up.

    >>> padded_lengths(torch.tensor([1, 8, 9, 16])).tolist()
    [8, 8, 11, 20]
    """
    grid = [8]
    while grid[-1] < lengths.max():
        grid.append(math.ceil(grid[-1] * STEP))
    steps = torch.tensor(grid)
    return steps[torch.searchsorted(steps, lengths)]


def padded_blocks(paths: Paths) -> tuple[list[AttentionBlock], Tensor]:
    """Return attention blocks in which every token is a query exactly once, and each token's place.

    Places are [L] long: the index of each token in the concatenated outputs of the blocks.
    """
    first = paths.lengths.cumsum(0) - paths.lengths
    new = paths.lengths - paths.shared
    runs = torch.stack([first, paths.shared, paths.lengths], 1)[new > 0]
    shapes = torch.stack([paths.shared > 0, padded_lengths(new), padded_lengths(paths.lengths)], 1)[new > 0]
    shapes, shape = shapes.unique(dim=0, return_inverse=True)
    blocks: list[AttentionBlock] = []
    places: list[Tensor] = []
    for number, (_, query_size, key_size) in enumerate(shapes.tolist()):
        for part in _parts_by_mask(runs[shape == number]):
            block, kept = _block(paths.rows, part, query_size, key_size)
            blocks.append(block)
            places.append(block.queries.masked_fill(~kept, -1).flatten())
    outputs = torch.cat(places)
    used = (outputs >= 0).nonzero()[:, 0]
    slots = torch.empty_like(used)
    slots[outputs[used]] = used
    return blocks, slots


def _parts_by_mask(runs: Tensor) -> list[Tensor]:
    """Separate the runs with the most common shared length, if there are many: they need only one mask."""
    values, counts = runs[:, 1].unique(return_counts=True)
    most = counts.argmax()
    if len(values) == 1 or counts[most] < MANY:
        return [runs]
    alike = runs[:, 1] == values[most]
    return [runs[alike], runs[~alike]]


def _block(rows: Tensor, runs: Tensor, query_size: int, key_size: int) -> tuple[AttentionBlock, Tensor]:
    """Return a block of runs, and a [n, Lq] bool mask that is false at padding.

    The columns of `runs` are the place of a sequence's first token in `rows`, the number of tokens before its
    run, and its length.
    """
    first, shared, lengths = runs.T[:, :, None]
    columns = torch.arange(key_size)
    keys = rows[first + columns.minimum(lengths - 1)]
    own = shared + columns[:query_size]  # columns of the queries among the keys
    queries = rows[first + own.minimum(lengths - 1)]
    kept = own < lengths
    if not shared.any():
        return AttentionBlock(queries, queries, None), kept
    if (shared == shared[0]).all():
        own = own[:1]
    return AttentionBlock(queries, keys, own[:, None, :, None] >= columns), kept


def block_mask(ends: Tensor, block_size: int = 128) -> BlockMask:
    """Return FlexAttention's mask without ever making a tensor of shape [L, L].

    The mask is made from `ends`, which is `PackedBatch.ends`. A block of queries skips a block of keys if no
    query sees any of the keys, and is not masked if every query sees all of the keys.
    """

    def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[key])

    some, full = visible_blocks(ends, block_size)
    if len(some) == 1:  # torch.compile specialises graphs on size 1; the second block has no tokens
        some, full = (F.pad(blocks, (0, 1, 0, 1)) for blocks in (some, full))
    masked, unmasked = _rows_of_blocks(some & ~full), _rows_of_blocks(full)
    lengths = (len(ends), len(ends))
    return BlockMask.from_kv_blocks(
        *masked, *unmasked, BLOCK_SIZE=block_size, mask_mod=sees, seq_lengths=lengths
    )


def visible_blocks(ends: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Return two [M, M] bool masks over M blocks of queries (rows) and M blocks of keys (columns).

    The first mask is true if any query of a query block sees any key of a key block. The second mask is true
    if every query sees every key. It is false for query blocks with padding, and for key blocks that do not
    come before the query block.
    """
    count = -(-len(ends) // block_size)
    padding = count * block_size - len(ends)
    last_end = F.pad(ends, (0, padding)).view(count, block_size).amax(1)
    first_end = F.pad(ends, (0, padding), value=len(ends)).view(count, block_size).amin(1)
    first_query = torch.arange(count, device=ends.device)[:, None] * block_size
    earlier = torch.ones(count, count, dtype=torch.bool, device=ends.device).tril(-1)
    itself = torch.eye(count, dtype=torch.bool, device=ends.device)
    some = itself | earlier & (last_end > first_query)
    full = earlier & (first_end >= first_query + block_size)
    return some, full


def _rows_of_blocks(dense: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of true columns in each row of `dense`, and all columns, with true columns first.

    Numbers are [1, 1, M] int32, columns [1, 1, M, M] int32.
    """
    columns = dense.int().argsort(dim=-1, descending=True, stable=True)
    return dense.sum(-1, dtype=torch.int32)[None, None], columns.int()[None, None]
