"""Mazes in text: any way from S to E that passes no wall, read letter by letter."""

from __future__ import annotations

from ..types import Score, Verifier
from .extraction import Reference, last_boxed, references_of

STEPS = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
"""Letter → rows and columns of its step."""


class MazeReward(Verifier):
    r"""Correct when the answer leads from `S` to `E` through no wall and stays in the maze (arXiv 2508.10751, A.1).

    The reference is the maze: lines of `*` (wall), `.`, one `S` and one `E`. The answer stands in the last
    `<answer>…</answer>`, and there in the last box if there is one, or, without tags, in the last box. Its letters U,
    D, L and R are the steps, in either case; everything else in it is skipped. Any way will do, also one that passes E
    and comes back.

    The authors' verifier (`code/maze_verifier.py` of RUCAIBox/Passk_Training) judges such answers alike. Of a response
    with neither tags nor box it reads every letter; here that is no answer, and wrong.

    >>> reward, maze = MazeReward(), "*****\n*S.E*\n*****"
    >>> reward("It is to the right: <answer> RR </answer>", maze)
    Score(correct=True, answer='RR', failure=None)
    >>> reward(r"\boxed{R}", maze).correct, reward("RR", maze).answer
    (False, None)
    """

    def __call__(self, response: str, reference: Reference) -> Score:
        """Score one response. `answer` is its steps."""
        _, begun, rest = response.rpartition("<answer>")
        inside, ended, _ = rest.partition("</answer>")
        text = (last_boxed(inside) or inside) if begun and ended else last_boxed(response)
        if text is None:
            return Score(False, None)
        steps = "".join(letter for letter in text if letter in "UDLRudlr").upper()
        return Score(any(_leads_to_the_end(maze, steps) for maze in references_of(reference)), steps)

    def check_reference(self, reference: Reference) -> None:
        """Refuse references that are no mazes."""
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
