"""Packing: responses end to end without padding, each distinct prompt encoded once.

The (N+1)·G responses of an anchored question share one prompt, and the G of any sampled prompt share theirs. In
a packed batch the prompt stands once and its responses follow; prompts attend to themselves, each response to its
prompt and to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from .layouts import AttentionBlock, Span, block_mask, padded_blocks


@dataclass(frozen=True, kw_only=True)
class PackedBatch:
    """L tokens of distinct prompts and their r responses, T of them response tokens."""

    input_ids: Tensor
    """[1, L] long."""
    position_ids: Tensor
    """[1, L] long; the positions of a response go on where its prompt ends."""
    prompt: Tensor
    """[L] long, non-decreasing: the prompt, counted through the batch, that each token belongs to or answers."""
    owner: Tensor
    """[L] long: the response, counted through the batch, that each token belongs to; −1 for tokens of prompts.

    A token sees those before it that have its prompt and either no owner or its own."""
    targets: Tensor
    """[T] long: response tokens, responses end to end in the order of `rows`."""
    predictors: Tensor
    """[T] long: packed row of the hidden state that predicts each target."""
    response: Tensor
    """[T] long, non-decreasing: row of each target's response in `rows`."""
    lengths: Tensor
    """[r] long: tokens per response."""
    rows: Tensor
    """[r] long, on the CPU: which of the caller's responses these are."""
    spans: Sequence[Span]
    """[r] where each response and its prompt stand, in the order of `rows`."""
    share_prefix: bool
    """Whether the responses of a prompt stand behind one copy of it."""

    def to(self, device: torch.device | str) -> PackedBatch:
        """Move all tensors but `rows` and `lengths`, which the CPU reads."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = {n: v.to(device) for n, v in values.items() if isinstance(v, Tensor) and n not in ("rows", "lengths")}
        return PackedBatch(**{**values, **moved})

    @cached_property
    def blocks(self) -> tuple[list[AttentionBlock], Tensor]:
        """For SDPA: blocks of attention, and [L] long, where each token's output stands in theirs."""
        blocks, slots = padded_blocks(self.spans, self.share_prefix)
        device = self.input_ids.device
        return [block.to(device) for block in blocks], slots.to(device)

    @cached_property
    def block_mask(self) -> BlockMask:
        """For FlexAttention."""
        return block_mask(self.prompt, self.owner)


def plan_micro_batches(
    prompt_lengths: Tensor, prompt: Tensor, response_lengths: Tensor, token_budget: int, share_prefix: bool = True
) -> list[Tensor]:
    """Cut responses into micro-batches of at most `token_budget` tokens (first-fit decreasing).

    Responses of one prompt stay together where they fit. A prompt with more is encoded again in each of its
    parts. A single response that is over the budget with its prompt gets a micro-batch of its own.

    Args:
        prompt_lengths: [S] long, tokens per distinct prompt.
        prompt: [R] long, row of each response's prompt.
        response_lengths: [R] long, tokens per response.
        token_budget: Distinct prompt tokens plus response tokens. Without sharing: tokens of a padded batch, the
            number of responses times the longest prompt with its response.
        share_prefix: As in `pack`.

    Returns:
        Rows of `prompt` per micro-batch, each once, each micro-batch ascending; no micro-batch for no responses.

    >>> lengths, prompt, responses = torch.tensor([4, 4]), torch.tensor([0, 0, 1]), torch.tensor([2, 2, 3])
    >>> [part.tolist() for part in plan_micro_batches(lengths, prompt, responses, 10)]
    [[0, 1], [2]]
    >>> [part.tolist() for part in plan_micro_batches(lengths, prompt, responses, 13, share_prefix=False)]
    [[2], [0, 1]]
    """
    own = response_lengths.tolist()
    heads = prompt_lengths[prompt].tolist()
    if share_prefix:
        groups: dict[int, list[int]] = {}
        for row, shared in enumerate(prompt.tolist()):
            groups.setdefault(shared, []).append(row)
        pieces = [piece for rows in groups.values() for piece in _pieces(rows, heads[rows[0]], own, token_budget)]
        parts = _first_fit_decreasing(pieces, token_budget)
    else:
        parts = _rectangles([head + length for head, length in zip(heads, own, strict=True)], token_budget)
    return [torch.tensor(sorted(rows), dtype=torch.long) for rows in parts]


def _pieces(rows: Sequence[int], head: int, lengths: Sequence[int], budget: int) -> list[tuple[int, list[int]]]:
    """Cut the responses of one prompt of `head` tokens into (tokens, rows) within the budget."""
    pieces: list[tuple[int, list[int]]] = []
    size, piece = head, list[int]()
    for row in rows:
        if piece and size + lengths[row] > budget:
            pieces.append((size, piece))
            size, piece = head, []
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
    """Rows, longest first, cut where their number times the longest would leave the budget."""
    bins: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        if bins and (len(bins[-1]) + 1) * lengths[bins[-1][0]] <= budget:
            bins[-1].append(row)
        else:
            bins.append([row])
    return bins


def pack(
    prompts: Sequence[Tensor], prompt: Tensor, responses: Sequence[Tensor], rows: Tensor, share_prefix: bool = True
) -> PackedBatch:
    """Pack the responses `rows` with their prompts.

    Args:
        prompts: [S] of [L_s] long, none empty.
        prompt: [R] long, row of each response's prompt.
        responses: [R] of [T_r] long, none empty.
        rows: [r] long, responses to pack.
        share_prefix: Encode a prompt once for all its responses; False repeats it before each.

    Raises:
        ValueError: no rows, or an empty prompt or response.
    """
    if not len(rows):
        raise ValueError("Expected at least one response to pack, but got none.")
    shared = prompt.tolist()
    order = sorted(rows.tolist(), key=lambda row: (shared[row], row))
    pieces: list[tuple[Tensor, int, int, int]] = []  # tokens, position of the first, prompt, owner
    spans: list[Span] = []
    previous, start, size, count = None, 0, 0, -1
    for owner, row in enumerate(order):
        head, body = prompts[shared[row]], responses[row]
        if not len(head) or not len(body):
            raise ValueError(
                f"Expected prompts and responses of at least one token, but response {row} or its prompt has none."
            )
        if not share_prefix or shared[row] != previous:
            previous, start, count = shared[row], size, count + 1
            pieces.append((head, 0, count, -1))
            size += len(head)
        pieces.append((body, len(head), count, owner))
        spans.append(Span(start, len(head), size, len(body)))
        size += len(body)
    tokens, _, prompts_of, owners = zip(*pieces, strict=True)
    sizes = torch.tensor([len(ids) for ids in tokens])
    lengths = torch.tensor([span.length for span in spans])
    predictors = torch.cat([torch.arange(span.start - 1, span.start + span.length - 1) for span in spans])
    predictors[lengths.cumsum(0) - lengths] = torch.tensor([span.prompt + span.prompt_length - 1 for span in spans])
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
        share_prefix=share_prefix,
    )
