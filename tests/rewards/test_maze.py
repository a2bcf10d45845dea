"""Verdicts on ways through a maze, against every way that networkx finds."""

from __future__ import annotations

from itertools import product

import networkx as nx
import pytest

from tagrpo.rewards import MazeReward

MAZE = "*****\n*S..*\n*.*.*\n*..E*\n*****"
OPEN = ".S.\n...\n..E"


def walks(maze, length):
    """All words of that length over U, D, L and R that lead from S to E."""
    cells = {(r, c): letter for r, line in enumerate(maze.split("\n")) for c, letter in enumerate(line)}
    graph = nx.DiGraph()
    for (r, c), letter in cells.items():
        for step, (down, right) in {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}.items():
            if letter != "*" and cells.get((r + down, c + right), "*") != "*":
                graph.add_edge((r, c), (r + down, c + right), step=step)
    start, end = (next(cell for cell, found in cells.items() if found == letter) for letter in "SE")
    found = {start: [""]}
    for _ in range(length):
        after = {}
        for cell, words in found.items():
            for _, to, step in graph.out_edges(cell, data="step"):
                after.setdefault(to, []).extend(word + step for word in words)
        found = after
    return set(found.get(end, []))


@pytest.mark.parametrize("maze", [MAZE, OPEN])
def test_of_all_words_those_are_correct_that_walk_from_start_to_end(maze):
    reward = MazeReward()
    for length in range(6):
        words = {"".join(word) for word in product("UDLR", repeat=length)}
        correct = {word for word in words if reward(f"<answer>{word}</answer>", maze).correct}
        assert correct == walks(maze, length)
    assert walks(MAZE, 4) == {"RRDD", "DDRR"}


@pytest.mark.parametrize(
    ("response", "steps"),
    [
        ("<answer> RRDD </answer>", "RRDD"),
        ("<answer>rrdd</answer>", "RRDD"),
        ("<answer>R, R, D, D</answer>", "RRDD"),
        ("first <answer>UU</answer>, no: <answer>RRDD</answer>", "RRDD"),
        (r"<answer>\boxed{RRDD} is the way, not UL</answer>", "RRDD"),
        (r"so \boxed{RRDD}.", "RRDD"),
        (r"\boxed{RRDD} <answer>U</answer>", "U"),
        ("RRDD", None),
        ("<answer>RRDD", None),
        ("", None),
        ("<answer></answer>", ""),
    ],
)
def test_the_answer_is_read_from_the_last_tags_or_from_the_last_box(response, steps):
    score = MazeReward()(response, MAZE)
    assert (score.answer, score.correct) == (steps, steps == "RRDD")


def test_walls_and_the_border_end_a_way_also_where_it_would_come_back():
    reward = MazeReward()
    assert not reward("<answer>URRDDD</answer>", OPEN).correct, "it left the maze"
    assert not reward("<answer>DRURDD</answer>", MAZE).correct, "it went through the wall"
    assert reward("<answer>RRDDULDDR</answer>", MAZE).correct is False
    assert reward("<answer>RRDDUD</answer>", MAZE).correct, "it passed the end and came back"


@pytest.mark.parametrize("maze", ["S.E\n..", "S..\n...", "SSE", "S#E", "12", ""])
def test_references_that_are_no_maze_are_refused(maze):
    with pytest.raises(ValueError, match="Expected a maze as reference"):
        MazeReward().check_reference(maze)
    MazeReward().check_reference(MAZE)
