"""The starter policy of `shortest_path`: examples to learn from, and their words."""

from __future__ import annotations

import random

from tagrpo.lab.tasks.shortest_path.reward import DIRECTIONS, ShortestPathReward
from tagrpo.lab.tasks.shortest_path.source import COLUMNS, FAMILIES, WIDTH, ShortestPathSource, sample_problem

from .parts import Starter, SupervisedExample, build_answer_tokenizer, draw_problem, vocabulary_of


def shortest_path_example(rng: random.Random) -> SupervisedExample:
    """Draw a question and one of its answers; paths of 4 to 8 steps in half of them."""
    family, problem = draw_problem(rng, ShortestPathSource, (range(1, 10), range(4, 9)), sample_problem)
    return SupervisedExample(FAMILIES[family].tell(problem, rng), rng.choice(problem.answers), family)


def shortest_path_vocabulary() -> list[str]:
    """Every word that a question or an answer can hold, sorted."""
    rows = range(1, WIDTH["test_size"] + 1)
    cells = [f"{column}{row}" for column in COLUMNS for row in rows]
    return vocabulary_of(FAMILIES.values(), [*cells, *DIRECTIONS])


STARTER = Starter(
    ShortestPathSource,
    shortest_path_example,
    lambda: build_answer_tokenizer(shortest_path_vocabulary()),
    ShortestPathReward,
    {"chain_steps": 0, "word_steps": 3000, "gate": 0.2},
)
