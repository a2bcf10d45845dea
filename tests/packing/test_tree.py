"""A tree of prefixes against a dictionary of prefixes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tagrpo.packing.tree import PrefixTree, common_prefixes, within

FEW_TOKENS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), max_size=12)
MANY_TOKENS = st.lists(
    st.lists(st.sampled_from([0, 1, 255, 256, 2**16, 2**31]), min_size=1, max_size=5), max_size=8
)


def tree_of(sequences):
    tokens = np.array([token for sequence in sequences for token in sequence], dtype=np.int64)
    return PrefixTree(tokens, np.array([len(sequence) for sequence in sequences], dtype=np.int64))


def prefixes(sequences):
    return {tuple(sequence[: end + 1]) for sequence in sequences for end in range(len(sequence))}


@given(FEW_TOKENS | MANY_TOKENS)
@settings(max_examples=2 * settings.default.max_examples)
def test_each_distinct_prefix_has_one_place_and_stands_behind_its_beginnings(sequences):
    tree = tree_of(sequences)
    assert [sequences[row] for row in tree.order] == sorted(sequences)
    place: dict[tuple[int, ...], int] = {}
    for row, path in zip(tree.order, np.split(tree.paths(), tree.lengths.cumsum())[:-1], strict=True):
        for end, found in enumerate(path.tolist()):
            assert place.setdefault(tuple(sequences[row][: end + 1]), found) == found
    assert place.keys() == prefixes(sequences)
    assert sorted(place.values()) == list(range(len(place)))
    new = tree.is_new()
    assert [prefix[-1] for prefix in sorted(place, key=place.get)] == tree.tokens[new].tolist()
    assert [len(prefix) - 1 for prefix in sorted(place, key=place.get)] == tree.depths[new].tolist()
    ends = tree.subtree_ends(tree.paths()).tolist()
    for prefix, key in place.items():
        below = sorted(other for longer, other in place.items() if longer[: len(prefix)] == prefix)
        assert below == list(range(key, ends[key]))


@given(FEW_TOKENS, st.integers(1, 40))
@settings(max_examples=3 * settings.default.max_examples)
def test_every_sequence_is_in_one_group_within_the_budget(sequences, budget):
    groups = tree_of(sequences).cut(budget)
    assert sorted(row for group in groups for row in group) == list(range(len(sequences)))
    for group in groups:
        assert group == sorted(group)
        assert len(prefixes([sequences[row] for row in group])) <= budget or len(group) == 1


def test_a_tree_that_fits_stays_whole_and_others_are_cut_where_the_least_is_repeated():
    one, other = [[1, 1, 1, 5], [1, 1, 1, 6]], [[2, 2, 2, 5], [2, 2, 2, 6]]
    assert tree_of([one[0], other[0], one[1], other[1]]).cut(5) == [[0, 2], [1, 3]]
    # Budget for two of three: the two that share three tokens, not those that share one.
    assert tree_of([[1, 2, 3, 4], [1, 7, 8, 9], [1, 2, 3, 5]]).cut(6) == [[0, 2], [1]]


def test_what_all_sequences_share_is_counted_once():
    head = list(range(10))
    groups = tree_of([[*head, 20 + row, 40 + row] for row in range(6)]).cut(16)
    assert groups == [[0, 1, 2], [3, 4, 5]]
    assert tree_of([[*head, 20 + row] for row in range(6)]).cut(16) == [list(range(6))]


def test_parts_are_assigned_largest_first_without_their_common_beginning():
    head = list(range(10))
    sequences = [[*head, *[20 + row] * own] for row, own in enumerate((4, 4, 2, 2))]
    assert tree_of(sequences).cut(16) == [[0, 2], [1, 3]]


def test_a_subtree_of_the_size_of_the_budget_stays_whole():
    head = [0, 0, 0, 0, 1, 1]
    subtree = [[*head, 3, 3, 3, 3, leaf, leaf, leaf] for leaf in (4, 5)]
    assert len(prefixes(subtree)) == 16
    assert tree_of([[*head, 2], *subtree, [0, 0, 0, 0, 9]]).cut(16) == [[1, 2], [0, 3]]


def test_the_fullest_group_is_first():
    sequences = [[row] * length for row, length in enumerate((6, 9, 4, 3))]
    groups = tree_of(sequences).cut(10)
    sizes = [sum(len(sequences[row]) for row in group) for group in groups]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) > 1


def test_neighbours_fill_a_group_where_a_subtree_is_cut():
    deep = [[0, 1, 1, 1, 1, 10 + row] for row in range(6)]
    groups = tree_of([*deep, [9, 9]]).cut(8)
    assert [[row for row in group if row < 6] for group in groups if group != [6]] == [[0, 1, 2], [3, 4, 5]]


def test_a_chain_of_thousands_is_cut_without_recursion():
    groups = tree_of([list(range(length)) for length in range(1, 1500)]).cut(10)
    assert sorted(row for group in groups for row in group) == list(range(1499))
    assert max(groups, key=len) == list(range(10))


@pytest.mark.parametrize("lengths", [[], [0], [3], [0, 2, 0, 1]])
def test_numbers_within_lengths(lengths):
    expected = [number for length in lengths for number in range(length)]
    assert within(np.array(lengths, dtype=np.int64)).tolist() == expected


@given(FEW_TOKENS)
def test_common_prefixes_of_neighbours(sequences):
    tokens = np.array([token for sequence in sequences for token in sequence], dtype=np.int64)
    expected = []
    for before, sequence in zip([[], *sequences], sequences, strict=False):
        equal = [a == b for a, b in zip(before, sequence, strict=False)]
        expected.append(equal.index(False) if False in equal else len(equal))
    found = common_prefixes(tokens, np.array([len(s) for s in sequences], dtype=np.int64))
    assert found.tolist() == expected
