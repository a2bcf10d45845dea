"""The starter policy of `shortest_path`: examples to learn from, and their words."""

from __future__ import annotations

import random

from ..starter import (
    LARGE_SHARE,
    Starter,
    SupervisedExample,
    build_answer_tokenizer,
    draw_family,
    draw_training,
    vocabulary_of,
)
from .reward import DIRECTIONS, ShortestPathReward
from .source import COLUMNS, FAMILIES, WIDTH, ShortestPathSource, phrase, sample_problem


def shortest_path_example(rng: random.Random) -> SupervisedExample:
    """Draw a question and one of its answers, families by their `share`; paths of 4 to 8 steps in half of them."""
    family = draw_family(rng, FAMILIES)
    lengths, large = rng.choice((range(1, 10), range(4, 9))), rng.random() < LARGE_SHARE
    splits = ShortestPathSource.splits
    problem = draw_training(splits, lambda: sample_problem(rng, lengths, large=large))
    return SupervisedExample(phrase(problem, family, rng), rng.choice(problem.answers), family)


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
