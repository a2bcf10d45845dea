"""Embedded task: the shortest path through a small grid with walls. Most questions have several answers.

The task is modelled on `shortest_path` of reasoning-gym, but a question has twenty words instead of two
hundred, every question has an answer, and no two splits share a grid.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ..generated import REFORMULATIONS, Asked, Family, ListSource, choices, splits_of
from .reward import DIRECTIONS, Cell, move

COLUMNS = "abcdef"
WIDTH = {"usual": 5, "test_size": 6}
"""Width of grids: 5 × 5; in the split `test_size` 6 × 6."""
NUM_WALLS = (3, 6)
"""Inclusive range of the number of walls."""
LENGTHS = {"easy": range(3, 6), "medium": range(7, 9), "hard": range(2, 5), "reformulated": range(2, 5)}
"""Regime → numbers of steps in a shortest path."""

FAMILIES: Mapping[str, Family] = {
    "plain": Family(layout="From {start} to {goal}. Walls: {items}.", share=0.40),
    "symbol": Family(layout="{start} > {goal} # {items}", link=" ", share=0.25),
    "list": Family(layout="start: {start}; goal: {goal}; walls: {items}", link=" and ", share=0.22),
    "question": Family(
        layout="Which way leads from {start} to {goal} if {items} are blocked?", link=" and ", share=0.12
    ),
    "story": Family(layout="Boxes stand at {items}. Tom walks from {start} to {goal}.", share=0.005),
    "reversed": Family(
        layout="{goal} is the goal, {items} are blocked, the start is {start}.", link=" and ", share=0.005
    ),
    "hybrid": Family(layout="Tom walks; walls: {items}; goal: {goal}; start: {start}", link=" and "),
}
COMMON = ("plain", "symbol", "list", "question")
RARE = ("story", "reversed")
TRAINED = COMMON + RARE
REPHRASINGS = {
    "easy": TRAINED,
    "medium": TRAINED,
    "hard": COMMON,
    "reformulated": ("list", "question", "reversed", *REFORMULATIONS),
}
"""Regime → families of its rephrasings."""


class Grid(NamedTuple):
    """Square grid with walls, and the shortest paths to find."""

    width: int
    start: Cell
    goal: Cell
    walls: tuple[Cell, ...]
    answers: tuple[str, ...]  # all shortest paths

    @property
    def length(self) -> int:
        """Number of steps of a shortest path."""
        return self.answers[0].count(" ") + 1


class ShortestPathSource(ListSource):
    """Source of grids of 5 × 5 cells with three to six walls; cells are named a1..e5, where a1 is top left.

    Regimes differ in how much the policy of `examples/starters` can solve, see docs/tasks.md. Paths have 3 to
    5 steps in `easy` and 7 or 8 steps in `medium`, phrased in the trained families. `hard` has paths of 2 to
    4 steps, but its originals are in two rarely trained families, and its rephrasings in common families.
    `reformulated` has paths of 2 to 4 steps, one family of originals, and rephrasings of five kinds: wordings
    in three other families, and the four kinds in `REFORMULATIONS`. `examples/starters/exposed.py` makes
    policies for which these kinds are easier to different degrees.

    The tests are `test_id`, of the same kind as training; `test_phrasing`, in a family that is never trained;
    and `test_size`, with grids of 6 × 6 cells.

    >>> group = ShortestPathSource("train", "easy", num_rephrasings=1).load()[0]
    >>> group.question, group.answer
    ('From e5 to b4. Walls: d5, c3, c2.', ('up left left left',))
    """

    families = FAMILIES
    splits = splits_of(easy=TRAINED, medium=TRAINED, hard=RARE, reformulated=("story",), unseen=("hybrid",))
    rephrasings = REPHRASINGS

    def sample(self, rng: random.Random) -> Asked:
        """Draw a problem with paths of the regime's length."""
        return sample_problem(rng, LENGTHS[self.regime], large=self.split == "test_size")

    def aids(self, asked: Asked, rng: random.Random) -> Mapping[str, str]:
        """Return the fields of `REFORMULATIONS` for a problem.

        `hint` is the first half of a shortest path, `choices` a shortest path and two wrong walks, and
        `noise` two unrelated cells.
        """
        length = asked.facts["length"]

        def walks() -> Iterator[str]:
            while True:
                yield " ".join(rng.choices(list(DIRECTIONS), k=length))

        hint = " ".join(rng.choice(asked.answers).split(" ")[: length // 2])
        cells = [
            f"{column}{row + 1}" for column in COLUMNS[: WIDTH["usual"]] for row in range(WIDTH["usual"])
        ]
        return {
            "hint": hint,
            "choices": choices(asked.answers, walks(), rng),
            "noise": " ".join(rng.sample(cells, 2)),
        }


def sample_problem(rng: random.Random, lengths: Sequence[int], *, large: bool = False) -> Asked:
    """Draw a problem by `sample_grid`; its facts are the `grid` and the `length` of a shortest path."""
    grid = sample_grid(rng, lengths, large=large)
    start, goal, *walls = map(name_of, (grid.start, grid.goal, *grid.walls))
    key = f"{grid.width}: {start} > {goal} # {' '.join(walls)}"
    told = walls, {"start": start, "goal": goal}
    return Asked(key, grid.answers, {"grid": key, "length": grid.length}, told)


def sample_grid(rng: random.Random, lengths: Sequence[int], *, large: bool = False) -> Grid:
    """Draw a grid whose shortest paths have one of the `lengths`; the walls are sorted."""
    width = WIDTH["test_size" if large else "usual"]
    cells = [(column, row) for column in range(width) for row in range(width)]
    while True:
        start, goal, *walls = rng.sample(cells, 2 + rng.randint(*NUM_WALLS))
        apart = abs(start[0] - goal[0]) + abs(start[1] - goal[1])
        if not min(lengths) - 2 <= apart <= max(lengths):  # a longer detour is not worth drawing for
            continue
        grid = Grid(width, start, goal, tuple(sorted(walls)), shortest_paths(width, start, goal, walls))
        if grid.answers and grid.length in lengths:
            return grid


def shortest_paths(width: int, start: Cell, goal: Cell, walls: Sequence[Cell]) -> tuple[str, ...]:
    """Return all shortest paths on a square grid, in alphabetical order; empty if the goal is unreachable.

    >>> shortest_paths(2, (0, 0), (1, 1), []), shortest_paths(2, (0, 0), (1, 1), [(1, 0)])
    (('down right', 'right down'), ('down right',))
    """
    distance, queue = {goal: 0}, [goal]
    for cell in queue:
        for direction in DIRECTIONS:
            beside = move(cell, direction)
            inside = 0 <= beside[0] < width and 0 <= beside[1] < width
            if inside and beside not in walls and beside not in distance:
                distance[beside] = distance[cell] + 1
                queue.append(beside)
    paths: list[tuple[Cell, str]] = [(start, "")] if start in distance else []
    for left in reversed(range(distance.get(start, 0))):
        longer = [
            (move(cell, direction), f"{path} {direction}") for cell, path in paths for direction in DIRECTIONS
        ]
        paths = [(cell, path) for cell, path in longer if distance.get(cell) == left]
    return tuple(sorted(path[1:] for _, path in paths))


def name_of(cell: Cell) -> str:
    """Return a cell's name in questions: (4, 2) is `e3`."""
    return f"{COLUMNS[cell[0]]}{cell[1] + 1}"
