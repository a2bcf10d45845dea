"""Shortest paths: the walk, all correct walks, and answers that mean harm."""

import random
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagrpo.lab.tasks.shortest_path import ShortestPathReward
from tagrpo.lab.tasks.shortest_path.reward import DIRECTIONS, move
from tagrpo.lab.tasks.shortest_path.source import sample_grid
from tagrpo.types import EnumeratingVerifier, Score
from tests.lab.tasks.hostile import SHORTEST_PATH as HOSTILE

reward = ShortestPathReward()


def walks_through(problem, walk):
    """Whether a walk stays on the grid, off the walls, and ends at the goal."""
    cell = problem.start
    for direction in walk:
        cell = move(cell, direction)
        if cell in problem.walls or not all(0 <= x < problem.width for x in cell):
            return False
    return cell == problem.goal


@pytest.mark.parametrize("seed", range(12))
def test_correct_are_exactly_the_shortest_walks_by_brute_force(seed):
    problem = sample_grid(random.Random(seed), range(1, 7))
    shortest = None
    for length in range(1, 7):
        found = {
            " ".join(walk) for walk in product(DIRECTIONS, repeat=length) if walks_through(problem, walk)
        }
        if found and shortest is None:
            shortest = found
            assert set(reward.correct_responses(problem.answers)) == found
            assert len(reward.correct_responses(problem.answers)) == len(found)
        for walk in product(DIRECTIONS, repeat=length) if length < 6 else ():
            said = " ".join(walk)
            assert reward(said, problem.answers).correct == (said in (shortest or ())), said
    assert shortest == set(problem.answers)
    assert isinstance(reward, EnumeratingVerifier)


def test_references_that_hold_every_step_are_enough():
    # Of six ways over an open 2 × 2 square, two hold all steps but those through the middle.
    every = {"right right down down", "right down right down", "right down down right"}
    every |= {"down down right right", "down right down right", "down right right down"}
    some = (
        "right right down down",
        "down down right right",
        "right down right down",
        "down right down right",
    )
    assert set(reward.correct_responses(some)) == every
    assert not reward("right down right down", some[:2]).correct


@pytest.mark.parametrize(
    "text",
    ["right", "right down right left", "right  down", "right down ", " right down", "Right down", "right,down",
     "right down.", "", "east south", "right\ndown", "right down <sep>"],
)  # fmt: skip
def test_what_is_written_otherwise_or_too_long_is_wrong(text):
    assert not reward(text, ("right down", "down right")).correct


def test_a_walk_of_the_right_length_is_an_answer():
    assert reward("left down", "right down") == Score(False, "left down")
    assert reward("left", "right down").answer is None


def test_references_that_end_in_different_cells_are_refused():
    with pytest.raises(ValueError, match="right down, up"):
        reward("right down", ("right down", "up"))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_are_wrong_after_little_work(name, tmp_path, monkeypatch, lines_run):
    monkeypatch.chdir(tmp_path)
    score, lines = lines_run(reward, HOSTILE[name], ("right down", "down right"))
    assert lines < 200
    assert score == Score(False, None)
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.sampled_from(["right", "down"]), min_size=1, max_size=5), st.randoms())
def test_with_all_orders_as_references_every_order_is_correct_and_no_detour(steps, random):
    references = tuple({" ".join(order) for order in permutations(steps)})
    reward = ShortestPathReward()
    random.shuffle(steps)
    assert reward(" ".join(steps), references).correct
    assert reward.correct_responses(references) == sorted(references)
    at = random.randrange(len(steps) + 1)
    assert not reward(" ".join([*steps[:at], "left", "right", *steps[at:]]), references).correct
