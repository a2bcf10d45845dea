"""Shortest paths on a grid: a walk of right, left, up and down, checked step by step."""

from __future__ import annotations

from collections.abc import Iterator

from ....rewards.canonical import Reference, references_of
from ....types import EnumeratingVerifier, Score

Cell = tuple[int, int]
"""Column and row, counted from any cell; rows are counted downwards."""

DIRECTIONS = {"right": (1, 0), "left": (-1, 0), "down": (0, 1), "up": (0, -1)}


def move(cell: Cell, direction: str) -> Cell:
    """Return the neighbour of `cell` in a direction."""
    column, row = DIRECTIONS[direction]
    return cell[0] + column, cell[1] + row


class ShortestPathReward(EnumeratingVerifier):
    """Verifier that accepts a walk to the goal if all of its steps belong to shortest paths.

    The references are shortest paths between two cells, such as `right right down`. If all steps of a walk
    from the start belong to shortest paths, each step leads nearer to the goal, so that the walk is a
    shortest path. If the references contain every such step, every shortest path is accepted. Directions must
    be separated by one space, without other text, so that `correct_responses` is complete.

    >>> reward = ShortestPathReward()
    >>> reward("right down", ("right down", "down right"))
    Score(correct=True, answer='right down', failure=None)
    >>> [reward(text, "right down").correct for text in ("down right", "right", "right down right left")]
    [False, False, False]
    """

    def __call__(self, response: str, reference: Reference) -> Score:
        """Score one response; `answer` is None if the response is not a walk of the references' length."""
        steps, goal, length = _shortest(reference)
        walk = response.split(" ", length)
        if len(walk) != length or not DIRECTIONS.keys() >= set(walk):
            return Score(False, None)
        cell = (0, 0)
        for direction in walk:
            if (cell, direction) not in steps:
                return Score(False, response)
            cell = move(cell, direction)
        return Score(cell == goal, response)

    def check_reference(self, reference: Reference) -> None:
        """Raise a ValueError if references are not walks, or their ends or lengths differ."""
        _shortest(reference)

    def correct_responses(self, reference: Reference) -> list[str]:
        """Return all responses that are scored as correct, without duplicates."""
        steps, goal, length = _shortest(reference)

        def walks(cell: Cell, left: int) -> Iterator[list[str]]:
            if not left:
                yield from [[]] if cell == goal else []
            for direction in DIRECTIONS if left else ():
                if (cell, direction) in steps:
                    yield from ([direction, *walk] for walk in walks(move(cell, direction), left - 1))

        return sorted(" ".join(walk) for walk in walks((0, 0), length))


def _shortest(reference: Reference) -> tuple[set[tuple[Cell, str]], Cell, int]:
    """Return the steps in the references as (cell, direction), the last cell, and the number of steps."""
    steps, ends = set(), set()
    for path in (text.split(" ") for text in references_of(reference)):
        if not DIRECTIONS.keys() >= set(path):
            raise ValueError(f"Expected references such as `right down`, but got {' '.join(path)!r}.")
        cell = (0, 0)
        for direction in path:
            steps.add((cell, direction))
            cell = move(cell, direction)
        ends.add((cell, len(path)))
    if len(ends) > 1:
        raise ValueError(
            f"Expected references of one length that end in one cell, but got {', '.join(references_of(reference))}."
        )
    ((goal, length),) = ends
    return steps, goal, length
