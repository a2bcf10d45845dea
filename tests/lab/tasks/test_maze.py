"""Generated mazes, and verdicts on ways through them, against networkx."""

from __future__ import annotations

import re
from itertools import pairwise, product

import networkx as nx
import pytest

from tagrpo.datamodules.overlap import find_overlaps
from tagrpo.lab.tasks.maze import MazeReward, MazeSource

MAZE = "*****\n*S..*\n*.*.*\n*..E*\n*****"
OPEN = ".S.\n...\n..E"


def graph_of(maze):
    """Rooms and doors that are free, neighbours joined."""
    rows = maze.split("\n")
    grid = nx.grid_2d_graph(len(rows), len(rows[0]))
    grid.remove_nodes_from(
        [(r, c) for r, line in enumerate(rows) for c, cell in enumerate(line) if cell == "*"]
    )
    return grid


@pytest.mark.parametrize("width", [7, 9, 15])
def test_every_free_cell_is_reached_and_the_shortest_way_is_correct(width):
    reward = MazeReward()
    for group in MazeSource(width=width, size=50).load():
        (maze,) = group.answer
        assert group.question == maze
        reward.check_reference(maze)
        rows = maze.split("\n")
        assert {len(rows), *map(len, rows)} == {width}
        graph = graph_of(maze)
        assert nx.is_connected(graph)
        assert graph.number_of_nodes() > ((width - 1) // 2) ** 2
        start, end = (next(cell for cell in graph if rows[cell[0]][cell[1]] == letter) for letter in "SE")
        way = nx.shortest_path(graph, start, end)
        letters = {(-1, 0): "U", (1, 0): "D", (0, -1): "L", (0, 1): "R"}
        steps = "".join(letters[b[0] - a[0], b[1] - a[1]] for a, b in pairwise(way))
        assert reward(f"<answer>{steps}</answer>", maze).correct
        assert not reward(f"<answer>{steps[:-1]}</answer>", maze).correct


def test_half_of_the_passages_beside_the_tree_are_open():
    # A tree of n rooms has n − 1 passages; a square of r × r rooms has 2r(r − 1).
    r, extra = 7, []
    for group in MazeSource(width=2 * r + 1, size=200).load():
        graph = graph_of(group.question)
        passages = graph.number_of_nodes() - r * r
        extra.append((passages - (r * r - 1)) / (2 * r * (r - 1) - (r * r - 1)))
    assert sum(extra) / len(extra) == pytest.approx(0.5, abs=0.02)


def test_mazes_differ_and_training_has_none_of_the_test_whatever_the_seeds():
    train = MazeSource(width=7, size=1000).load()
    test = [group for seed in (0, 1) for group in MazeSource("test", width=7, size=300, seed=seed).load()]
    assert len({group.question for group in train}) == len({group.id for group in train}) == 1000
    assert not {group.question for group in train} & {group.question for group in test}
    assert [group.question for group in MazeSource(width=7, size=1000).load()] == [
        group.question for group in train
    ]
    assert train[0].question != MazeSource(width=7, size=1, seed=1).load()[0].question


def test_no_more_mazes_than_there_are():
    # Four rooms in a ring: one of four doors shut, or none, and 12 ways to choose start and end.
    train, test = MazeSource(width=5, size=61), MazeSource("test", width=5, size=61)
    found = 0
    for source in (train, test):
        with pytest.raises(ValueError, match="Set a smaller `size`") as caught:
            source.load()
        found += int(re.search(r"but (\d+)\.", str(caught.value))[1])
    assert found == 60


@pytest.mark.parametrize("width", [3, 8])
def test_other_widths_are_refused(width):
    with pytest.raises(ValueError, match=f"`width`.*{width}"):
        MazeSource(width=width)


def test_rows_of_mazes_are_words_so_that_different_mazes_do_not_overlap():
    train, test = MazeSource(width=9, size=200).load(), MazeSource("test", width=9, size=50).load()
    assert find_overlaps(train, {"test": test})["test"] == []
    assert len(find_overlaps(train, {"test": train[:3]})["test"]) == 3


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
        ("<think><answer>UU</answer></think><answer>RRDD</answer>", "RRDD"),
        (r"\boxed{UU}</think>\boxed{RRDD}", "RRDD"),
        (r"\boxed{RRDD}. I put it in \boxed{}.", "RRDD"),
        (r"<think>\boxed{RRDD}", None),
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
    with pytest.raises(ValueError, match="maze"):
        MazeReward().check_reference(maze)
    MazeReward().check_reference(MAZE)
