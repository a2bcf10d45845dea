"""Tree of the prefixes that sequences share, and its cuts into parts.

Sequences in lexicographic order are a depth-first walk through their tree: each sequence shares its first
tokens with the previous sequence, and adds the rest as a run of new tokens. Loops run over sequences, never
over tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[np.int64]]


class Part(NamedTuple):
    """Neighbouring sequences of a tree, in its order."""

    first: int
    """Place of the first sequence."""
    end: int
    """Place after the last sequence."""


class PrefixTree:
    """The L distinct prefixes of n sequences, whose N tokens are concatenated.

    Args:
        tokens: [N] int64, 0 ≤ token < 2^32.
        lengths: [n] int64 tokens per sequence, each at least 1.
    """

    order: list[int]
    """Indices of the n sequences in stable lexicographic order. All arrays below are in this order."""
    tokens: Array
    """[N] tokens of the sequences."""
    lengths: Array
    """[n] tokens per sequence."""
    depths: Array
    """[N] number of tokens before each token in its sequence."""
    shared: Array
    """[n] number of tokens that a sequence shares with the previous sequence; 0 for the first sequence."""
    starts: Array
    """[n + 1] number of distinct prefixes in all sequences before each sequence; the last entry is L."""

    def __init__(self, tokens: Array, lengths: Array) -> None:
        ends = lengths.cumsum()
        characters = tokens.astype(">u4").tobytes()  # bytes compare as the numbers do
        bounds = [0, *(4 * ends).tolist()]
        keys = [characters[first:end] for first, end in pairwise(bounds)]
        self.order = sorted(range(len(keys)), key=lambda row: (keys[row], row))
        self.lengths = lengths[self.order]
        self.depths = within(self.lengths)
        self.tokens = tokens[(ends - lengths)[self.order].repeat(self.lengths) + self.depths]
        self.shared = common_prefixes(self.tokens, self.lengths)
        self.starts = np.concatenate([[0], (self.lengths - self.shared).cumsum()])

    def __len__(self) -> int:
        return len(self.order)

    def is_new(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return whether each token ends a prefix that no earlier sequence has, [N] bool; true L times."""
        return self.depths >= self.shared.repeat(self.lengths)

    def paths(self) -> Array:
        """Return the index 0..L−1 of each token's prefix, [N] long, in the order of the sequences."""
        places = np.empty(len(self.tokens), dtype=np.int64)
        path = np.empty(self.lengths.max(initial=0), dtype=np.int64)
        numbers = np.arange(self.starts[-1])
        shared, lengths = self.shared.tolist(), self.lengths.tolist()
        bounds = zip(shared, lengths, pairwise(self.starts.tolist()), strict=True)
        first = 0
        for common, length, (start, end) in bounds:
            path[common:length] = numbers[start:end]
            places[first : first + length] = path[:length]
            first += length
        return places

    def subtree_ends(self, paths: Array) -> Array:
        """Return the end of each prefix's subtree, [L]: prefixes i to ends[i] − 1 begin with prefix i."""
        last = np.empty(self.starts[-1], dtype=np.int64)
        last[paths] = np.arange(len(self)).repeat(self.lengths)  # of several sequences, the last one stays
        ends: Array = self.starts[last + 1]
        return ends

    def size(self, part: Part) -> int:
        """Return the number of distinct prefixes of a part's sequences."""
        return int(self.shared[part.first] + self.starts[part.end] - self.starts[part.first])

    def cut(self, budget: int) -> list[list[int]]:
        """Cut the sequences into groups of at most `budget` distinct prefixes.

        A sequence of more than `budget` tokens is a group by itself. Subtrees that fit stay whole. Other
        subtrees are cut where neighbours share the fewest tokens; neighbours that share more than the common
        beginning of all sequences stay together as far as they fit. The parts are assigned to groups, largest
        first, each to the first group with room (first-fit decreasing). This assignment counts the common
        beginning of all sequences once per group, and every other prefix once per part.

        Returns:
            Sequences of each group, ascending. The fullest group is first, so that ranks which step together
                have groups of similar size.
        """
        if not self.order:
            return []
        trunk = int(self.shared[1:].min(initial=self.lengths[0]))
        parts = self._joined(sorted(self._fitting(budget)), budget, trunk)
        parts.sort(key=lambda part: (-self.size(part), part))
        rooms: list[int] = []
        groups: list[list[int]] = []
        for part in parts:
            own = self.size(part) - trunk
            index = next((index for index, room in enumerate(rooms) if own <= room), len(rooms))
            if index == len(rooms):
                rooms.append(budget - trunk)
                groups.append([])
            rooms[index] -= own
            groups[index] += self.order[part.first : part.end]
        fullest_first = sorted(range(len(groups)), key=lambda index: (rooms[index], index))
        return [sorted(groups[index]) for index in fullest_first]

    def _fitting(self, budget: int) -> Iterator[Part]:
        """Yield the largest subtrees of at most `budget` distinct prefixes, or of one sequence."""
        left = [Part(0, len(self))]
        while left:
            part = left.pop()
            if part.end - part.first == 1 or self.size(part) <= budget:
                yield part
            else:
                left += self._children(part)

    def _children(self, part: Part) -> list[Part]:
        """Cut a part of several sequences wherever neighbours share the fewest tokens."""
        inner = self.shared[part.first + 1 : part.end]
        cuts = part.first + 1 + np.flatnonzero(inner == inner.min())
        return [Part(*bounds) for bounds in pairwise([part.first, *cuts.tolist(), part.end])]

    def _joined(self, parts: Sequence[Part], budget: int, trunk: int) -> list[Part]:
        """Join neighbouring parts that share more than `trunk` tokens as far as they fit into the budget together."""
        joined = [parts[0]]
        for part in parts[1:]:
            both = Part(joined[-1].first, part.end)
            if self.shared[part.first] > trunk and self.size(both) <= budget:
                joined[-1] = both
            else:
                joined.append(part)
        return joined


def within(lengths: Array) -> Array:
    """Return the numbers 0, 1, …, length − 1 for each of `lengths`, concatenated, [N].

    >>> within(np.array([2, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    ends = lengths.cumsum()
    return np.arange(ends[-1] if len(ends) else 0) - (ends - lengths).repeat(lengths)


def common_prefixes(tokens: Array, lengths: Array) -> Array:
    """Return the length of the prefix that each sequence shares with the previous one, [n]; 0 for the first.

    `tokens` are concatenated sequences of `lengths`, each at least 1.

    >>> common_prefixes(np.array([1, 2, 1, 2, 3, 2]), np.array([2, 3, 1])).tolist()
    [0, 2, 0]
    """
    if len(lengths) < 2:
        return np.zeros_like(lengths)
    firsts = lengths.cumsum() - lengths
    compared = np.minimum(lengths[:-1], lengths[1:])
    depths = within(compared)
    equal = tokens[firsts[:-1].repeat(compared) + depths] == tokens[firsts[1:].repeat(compared) + depths]
    reached = np.where(equal, compared.repeat(compared), depths)
    common = np.minimum.reduceat(reached, compared.cumsum() - compared)
    return np.concatenate([[0], common])
