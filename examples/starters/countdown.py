"""The starter policy of `countdown`: examples to learn from, and their words."""

from __future__ import annotations

import random

from tagrpo.lab.tasks.countdown.reward import OPERATORS, CountdownReward
from tagrpo.lab.tasks.countdown.source import (
    COUNTS,
    FAMILIES,
    LARGEST_TARGET,
    CountdownSource,
    sample_problem,
)

from .parts import Starter, SupervisedExample, build_answer_tokenizer, draw_problem, vocabulary_of


def countdown_example(rng: random.Random) -> SupervisedExample:
    """Draw a question of three or four numbers and one of its answers."""
    family, problem = draw_problem(rng, CountdownSource, sorted(set(COUNTS.values())), sample_problem)
    return SupervisedExample(FAMILIES[family].tell(problem, rng), problem.answers[0], family)


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
