"""The starter policy of `countdown`: examples to learn from, and their words."""

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
from .reward import OPERATORS, CountdownReward
from .source import COUNTS, FAMILIES, LARGEST_TARGET, CountdownSource, phrase, sample_problem


def countdown_example(rng: random.Random) -> SupervisedExample:
    """Draw a question of three or four numbers and one of its answers, families by their `share`."""
    family = draw_family(rng, FAMILIES)
    count, large = rng.choice(sorted(set(COUNTS.values()))), rng.random() < LARGE_SHARE
    splits = CountdownSource.splits
    problem = draw_training(splits, lambda: sample_problem(rng, count, large=large))
    return SupervisedExample(phrase(problem, family, rng), problem.expression, family)


def countdown_vocabulary() -> list[str]:
    """Every word that a question or an answer can hold, sorted."""
    numbers = map(str, range(1, LARGEST_TARGET + 1))
    return vocabulary_of(FAMILIES.values(), [*numbers, *OPERATORS, "(", ")"])


STARTER = Starter(
    CountdownSource,
    countdown_example,
    lambda: build_answer_tokenizer(countdown_vocabulary()),
    CountdownReward,
    {"chain_steps": 0, "word_steps": 2600, "gate": 0.2},
)
