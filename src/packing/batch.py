"""Packing: responses end to end without padding, each distinct prompt once, before its responses.

Prompts attend to themselves, each response to its prompt and to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

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
    """[L] long, non-decreasing: number, within the batch, of the prompt that each token belongs to or answers."""
    owner: Tensor
    """[L] long: number, within the batch, of the response that each token belongs to; −1 for tokens of prompts.

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

    def to(self, device: torch.device | str) -> PackedBatch:
        """Move all tensors but `rows` and `lengths`, which the CPU reads."""
        names = [field.name for field in fields(self) if field.name not in ("rows", "lengths", "spans")]
        moved: dict[str, Any] = {name: getattr(self, name).to(device) for name in names}
        return replace(self, **moved)

    @cached_property
    def blocks(self) -> tuple[list[AttentionBlock], Tensor]:
        """For SDPA: blocks of attention, and [L] long, the place of each token's output among the blocks' outputs."""
        blocks, slots = padded_blocks(self.spans)
        device = self.input_ids.device
        moved = [AttentionBlock._make(x if x is None else x.to(device) for x in block) for block in blocks]
        return moved, slots.to(device)

    @cached_property
    def block_mask(self) -> BlockMask:
        """For FlexAttention."""
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
    order = sorted(range(len(responses)) if rows is None else rows.tolist(), key=lambda row: (shared[row], row))
    if not order:
        raise ValueError("Expected at least one response to pack, but got none.")
    pieces: list[tuple[Tensor, int, int, int]] = []  # tokens, position of the first, prompt, owner
    spans: list[Span] = []
    previous, start, size, count = None, 0, 0, -1
    for owner, row in enumerate(order):
        head, body = prompts[shared[row]], responses[row]
        if not len(head) or not len(body):
            raise ValueError(
                f"Expected prompts and responses of at least one token, but response {row} or its prompt has none."
            )
        if shared[row] != previous:
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
    )
