"""Mazes in text: the task of Pass@k training (arXiv 2508.10751, A.1, Table 4 and Fig. 14), generated here.

The format is the paper's: n × n characters, where `S` is the start, `E` the end, `.` a free cell and `*` a
wall, as in Fig. 14 and in the authors' verifier (A.1 swaps `.` and `*`). `data=maze` has the paper's sizes
and numbers of mazes. The paper does not say how its mazes are made. Here, a random tree joins rooms at odd
coordinates, and every passage outside the tree is open with probability one half (5 of 9 are open in the
paper's only example). The paper's mazes are RUC-AIBOX/Passk_Training_Maze on the hub.
"""

from __future__ import annotations

import random
import zlib
from typing import Literal

from ...datamodules.sources.base import Source
from ...rewards.canonical import Reference, references_of
from ...rewards.extraction import last_boxed
from ...rewards.response import split_response
from ...types import QuestionGroup, Score, Verifier

LOOPS = 0.5
"""Probability that a passage outside the tree is open."""
STEPS = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
"""Letter → its step, as (rows, columns)."""


class MazeSource(Source):
    """Source of mazes. Question and reference are the maze alone; the template states the task.

    Args:
        split: Name of the split. The splits have no maze in common, whatever their seeds.
        width: Characters per line, and number of lines; odd, at least 5.
        size: Number of mazes, all different.
        seed: Seed for drawing the mazes.
    """

    def __init__(
        self, split: Literal["train", "test"] = "train", width: int = 9, size: int = 10_000, seed: int = 0
    ) -> None:
        if width < 5 or not width % 2:
            raise ValueError(f"Expected `width` to be odd and at least 5, but got {width}.")
        self.split, self.width, self.size, self.seed = split, width, size, seed

    def load(self) -> list[QuestionGroup]:
        """Generate the mazes."""
        rng, found = random.Random(f"{self.split}/{self.width}/{self.seed}"), dict[str, QuestionGroup]()
        for _ in range(100 * self.size + 1001):
            if len(found) == self.size:
                return list(found.values())
            maze = draw_maze(rng, self.width)
            if (zlib.crc32(maze.encode()) % 10 == 0) == (self.split == "test"):
                id = f"maze-{self.width}-{self.split}-{self.seed}-{len(found):05d}"
                found.setdefault(maze, QuestionGroup(id, maze, (), (maze,), {"width": self.width}))
        raise ValueError(
            f"Expected {self.size} mazes of width {self.width} for {self.split}, but there seem to be but "
            f"{len(found)}. Set a smaller `size`, or a larger `width`."
        )


def draw_maze(rng: random.Random, width: int) -> str:
    """Draw a maze in which all rooms can be reached."""
    rooms = [(row, column) for row in range(1, width, 2) for column in range(1, width, 2)]
    inside = range(1, width - 1)
    doors = [(row, column) for row in inside for column in inside if (row + column) % 2]
    rng.shuffle(doors)
    part, free = {room: {room} for room in rooms}, set(rooms)
    for row, column in doors:
        one, other = (
            ((row - 1, column), (row + 1, column)) if column % 2 else ((row, column - 1), (row, column + 1))
        )
        if part[one] is not part[other]:
            part[one] |= part[other]
            part.update(dict.fromkeys(part[other], part[one]))
        elif rng.random() >= LOOPS:
            continue
        free.add((row, column))
    ends = dict(zip(rng.sample(rooms, 2), "SE", strict=True))
    cells = [[ends.get((r, c), "." if (r, c) in free else "*") for c in range(width)] for r in range(width)]
    return "\n".join(map("".join, cells))


class MazeReward(Verifier):
    r"""Verifier that accepts a walk from `S` to `E` inside the maze, through no wall (arXiv 2508.10751, A.1).

    The reference is the maze: lines of `*` (wall), `.`, one `S` and one `E`. The answer is the last box
    between the last tags `<answer>…</answer>`, or all text between these tags if there is no box. Without
    tags, it is the last box of the response. The steps are the answer's letters U, D, L and R, in upper or
    lower case; all other characters are skipped. Any walk is correct, even if it passes E and comes back.
    Thoughts (`split_response`) are not read.

    The authors' verifier (`code/maze_verifier.py` of RUCAIBox/Passk_Training) judges such answers in the same
    way. If a response has neither tags nor box, the authors' verifier reads every letter; here, such a
    response has no answer and is wrong.

    >>> reward, maze = MazeReward(), "*****\n*S.E*\n*****"
    >>> reward("It is to the right: <answer> RR </answer>", maze)
    Score(correct=True, answer='RR', failure=None)
    >>> reward(r"\boxed{R}", maze).correct, reward("RR", maze).answer
    (False, None)
    """

    def __call__(self, response: str, reference: Reference) -> Score:
        """Score one response. `answer` is the answer's steps."""
        response = split_response(response).answer
        _, begun, rest = response.rpartition("<answer>")
        inside, ended, _ = rest.partition("</answer>")
        text = (last_boxed(inside) or inside) if begun and ended else last_boxed(response)
        if text is None:
            return Score(False, None)
        steps = "".join(letter for letter in text if letter in "UDLRudlr").upper()
        return Score(any(_leads_to_the_end(maze, steps) for maze in references_of(reference)), steps)

    def check_reference(self, reference: Reference) -> None:
        """Raise a ValueError if a reference is not a maze."""
        for maze in references_of(reference):
            as_long = len(set(map(len, maze.split("\n")))) == 1
            if not as_long or set(maze) - set("*.SE\n") or maze.count("S") != 1 or maze.count("E") != 1:
                raise ValueError(
                    "Expected a maze as reference, lines of one length of * and ., one S and one E, but got "
                    f"{maze[:200]!r}."
                )


def _leads_to_the_end(maze: str, steps: str) -> bool:
    rows = maze.split("\n")
    row = next(number for number, line in enumerate(rows) if "S" in line)
    column = rows[row].index("S")
    for step in steps:
        row, column = row + STEPS[step][0], column + STEPS[step][1]
        if not (0 <= row < len(rows) and 0 <= column < len(rows[0])) or rows[row][column] == "*":
            return False
    return rows[row][column] == "E"
