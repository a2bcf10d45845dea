"""Packing: responses end to end without padding, each distinct prompt encoded once.

The (N+1)·G responses of an anchored question share one prompt, and the G of any sampled prompt share theirs. In
a packed batch the prompt stands once, its responses follow, and attention is laid out in blocks: prompts attend
to themselves, each response to its prompt and to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

MIN_FILL = 0.75
"""Responses share an attention block while the shortest fills this part of it: padding never reaches a matrix
product of the model, and costs at most this much of the attention itself."""


class AttentionBlock(NamedTuple):
    """n sequences of queries, padded to the longest; indices are rows of the packed tokens."""

    queries: Tensor
    """[n, Lq] long; padding repeats some row, its output is never read."""
    keys: Tensor
    """[n, Lk] long; the last Lq of them are the rows of the queries."""
    mask: Tensor | None
    """[n or 1, 1, Lq, Lk] bool, True where a query sees a key; None where Lq = Lk and plain causality does."""


@dataclass(frozen=True, kw_only=True)
class PackedBatch:
    """L tokens of distinct prompts and their r responses, T of them response tokens."""

    input_ids: Tensor
    """[1, L] long."""
    position_ids: Tensor
    """[1, L] long; the positions of a response go on where its prompt ends."""
    blocks: Sequence[AttentionBlock]
    """Who attends to whom. Every packed token is a query of exactly one block."""
    slots: Tensor
    """[L] long: where each token's output stands in the blocks' outputs, flattened and concatenated."""
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

    def to(self, device: torch.device | str) -> PackedBatch:
        """Move all but `rows`."""

        def move(value: Any) -> Any:
            return value.to(device) if isinstance(value, Tensor) else value

        moved = {f.name: move(getattr(self, f.name)) for f in fields(self) if f.name not in ("blocks", "rows")}
        blocks = [AttentionBlock(*map(move, block)) for block in self.blocks]
        return PackedBatch(**moved, blocks=blocks, rows=self.rows)


def plan_micro_batches(
    prompt_lengths: Tensor,
    prompt: Tensor,
    response_lengths: Tensor,
    token_budget: int,
    share_prefix: bool = True,
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
    prompts: Sequence[Tensor],
    prompt: Tensor,
    responses: Sequence[Tensor],
    rows: Tensor,
    share_prefix: bool = True,
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
    order = sorted(rows.tolist(), key=lambda row: (int(prompt[row]), row))
    for row in order:
        if not len(responses[row]) or not len(prompts[int(prompt[row])]):
            raise ValueError(
                f"Expected prompts and responses of at least one token, but response {row} or its prompt has none."
            )
    return _Packer(prompts, prompt, responses, order, share_prefix).packed()


class _Packer:
    """Lays tokens out, remembering where each prompt and each response starts."""

    def __init__(
        self,
        prompts: Sequence[Tensor],
        prompt: Tensor,
        responses: Sequence[Tensor],
        order: list[int],
        share_prefix: bool,
    ) -> None:
        self.order = order
        self.share_prefix = share_prefix
        self.ids: list[Tensor] = []
        self.positions: list[Tensor] = []
        self.size = 0
        # (start of the prompt, its length, start of the response, its length) of each response, in `order`.
        self.spans: list[tuple[int, int, int, int]] = []
        previous, start = None, 0
        for row in order:
            head, body = prompts[int(prompt[row])], responses[row]
            if not share_prefix or int(prompt[row]) != previous:
                start, previous = self._append(head, 0), int(prompt[row])
            self.spans.append((start, len(head), self._append(body, len(head)), len(body)))

    def _append(self, ids: Tensor, position: int) -> int:
        start = self.size
        self.ids.append(ids)
        self.positions.append(torch.arange(position, position + len(ids)))
        self.size += len(ids)
        return start

    def packed(self) -> PackedBatch:
        blocks = self._shared_blocks() if self.share_prefix else self._repeated_blocks()
        slots = torch.empty(self.size, dtype=torch.long)
        offset = 0
        for queries, keep in blocks:
            slots[queries.queries[keep]] = offset + keep.flatten().nonzero()[:, 0]
            offset += keep.numel()
        predictors = []
        for prompt_start, prompt_length, start, length in self.spans:
            rows = torch.arange(start - 1, start + length - 1)
            rows[0] = prompt_start + prompt_length - 1
            predictors.append(rows)
        targets = [torch.arange(start, start + length) for _, _, start, length in self.spans]
        ids = torch.cat(self.ids)
        lengths = torch.tensor([span[3] for span in self.spans])
        return PackedBatch(
            input_ids=ids[None],
            position_ids=torch.cat(self.positions)[None],
            blocks=[block for block, _ in blocks],
            slots=slots,
            targets=ids[torch.cat(targets)],
            predictors=torch.cat(predictors),
            response=torch.repeat_interleave(lengths),
            lengths=lengths,
            rows=torch.tensor(self.order),
        )

    def _repeated_blocks(self) -> list[tuple[AttentionBlock, Tensor]]:
        """Causal blocks of whole sequences; a response follows its own copy of the prompt."""
        whole = sorted(((head + length, start) for start, head, _, length in self.spans), reverse=True)
        return [_causal([torch.arange(start, start + size) for size, start in part]) for part in _buckets(whole)]

    def _shared_blocks(self) -> list[tuple[AttentionBlock, Tensor]]:
        """Causal blocks of prompts, then blocks of responses that see their prompt and themselves."""
        heads = sorted({(length, start) for start, length, _, _ in self.spans}, reverse=True)
        blocks = [_causal([torch.arange(start, start + length) for length, start in part]) for part in _buckets(heads)]
        bodies = sorted(((span[3], span) for span in self.spans), key=lambda item: -item[0])
        blocks += [_with_prefix([span for _, span in part]) for part in _buckets(bodies)]
        return blocks


def _buckets(items: Sequence[tuple[int, Any]]) -> list[list[tuple[int, Any]]]:
    """Cut items, longest first, into runs in which the shortest fills `MIN_FILL` of the longest."""
    buckets: list[list[tuple[int, Any]]] = []
    for item in items:
        if buckets and item[0] >= MIN_FILL * buckets[-1][0][0]:
            buckets[-1].append(item)
        else:
            buckets.append([item])
    return buckets


def _causal(sequences: Sequence[Tensor]) -> tuple[AttentionBlock, Tensor]:
    """A block of sequences that see their own past, and [n, Lq] bool: what is no padding."""
    rows = pad_sequence(list(sequences), batch_first=True)
    keep = torch.arange(rows.shape[1]) < torch.tensor([[len(s)] for s in sequences])
    return AttentionBlock(rows, rows, None), keep


def _with_prefix(spans: Sequence[tuple[int, int, int, int]]) -> tuple[AttentionBlock, Tensor]:
    """A block of responses that see their whole prompt and their own past."""
    block, keep = _causal([torch.arange(start, start + length) for _, _, start, length in spans])
    heads = pad_sequence([torch.arange(s, s + length) for s, length, _, _ in spans], batch_first=True)
    lengths = torch.tensor([length for _, length, _, _ in spans])
    lengths = lengths[:1] if bool((lengths == lengths[0]).all()) else lengths
    size = block.queries.shape[1]
    visible = (torch.arange(heads.shape[1]) < lengths[:, None])[:, None, None, :].expand(-1, 1, size, -1)
    causal = torch.ones(size, size, dtype=torch.bool).tril().expand(len(lengths), 1, -1, -1)
    return AttentionBlock(block.queries, torch.cat([heads, block.keys], 1), torch.cat([visible, causal], -1)), keep
