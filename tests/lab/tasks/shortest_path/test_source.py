"""The shortest-path task: its answers against another library's, and how long its paths are."""

import random

import networkx
import pytest

from tagrpo.lab.tasks.shortest_path.reward import move
from tagrpo.lab.tasks.shortest_path.source import ShortestPathSource, sample_grid


@pytest.mark.parametrize("large", [False, True])
def test_answers_are_all_shortest_paths_of_networkx(large):
    rng = random.Random(0)
    for _ in range(60):
        problem = sample_grid(rng, range(1, 12), large=large)
        grid = networkx.grid_2d_graph(problem.width, problem.width)
        grid.remove_nodes_from(problem.walls)
        expected = {tuple(path) for path in networkx.all_shortest_paths(grid, problem.start, problem.goal)}
        found = set()
        for answer in problem.answers:
            cells = [problem.start]
            for direction in answer.split(" "):
                cells.append(move(cells[-1], direction))
            found.add(tuple(cells))
        assert found == expected
        assert len(problem.answers) == len(expected)
        assert problem.length == len(cells) - 1


@pytest.mark.parametrize(
    ("regime", "lengths"), [("easy", {3, 4, 5}), ("medium", {7, 8}), ("hard", {2, 3, 4})]
)
def test_a_regime_has_paths_of_its_lengths_in_every_split(regime, lengths):
    for split in ("train", "test_id", "test_phrasing", "test_size"):
        groups = ShortestPathSource(split, regime, size=120).load()
        assert {group.metadata["length"] for group in groups} == lengths
        assert {group.metadata["grid"][:2] for group in groups} == {"6:" if split == "test_size" else "5:"}


def test_a_goal_out_of_reach_is_never_asked_for():
    rng = random.Random(1)
    assert all(sample_grid(rng, range(1, 30)).answers for _ in range(300))


def test_originals_of_hard_are_told_in_rare_families_and_rephrasings_in_common_ones():
    for group in ShortestPathSource("train", "hard", size=20).load():
        assert group.metadata["family"] in ("story", "reversed")
        assert set(group.metadata["rephrasing_families"]) < {"plain", "symbol", "list", "question"}
