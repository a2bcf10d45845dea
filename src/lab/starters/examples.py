"""Supervised examples that starter policies are made from, and the words of each task."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import product
from typing import NamedTuple, TypeVar

from ...datamodules.sources import arithmetic, countdown, shortest_path
from ...datamodules.sources.arithmetic import PEOPLE, SPLITS, Operation, sample_problem
from ...datamodules.sources.arithmetic import Family as WordFamily
from ...datamodules.sources.arithmetic import Problem as WordProblem
from ...datamodules.sources.generated import Family, Problem, Split, bucket
from ...rewards.countdown import OPERATORS
from ...rewards.shortest_path import DIRECTIONS

ANSWER_MARKER = "####"
TOKEN_PATTERN = r"####|[0-9]|[A-Za-z]+|[^\sA-Za-z0-9]"
"""One token of `arithmetic`: a word, a digit, a punctuation mark, or the answer marker."""
ANSWER_PATTERN = r"<sep>|[a-z][0-9]\b|[0-9]+|[A-Za-z]+|[^\sA-Za-z0-9]"
"""One token in tasks whose answers can be listed: a word, a number, a cell of a grid, a punctuation mark."""
LARGE_SHARE = 0.05
"""Of examples as large as `test_size`: a policy that has never read such a number can't even copy it."""
P = TypeVar("P", bound=Problem)

TEMPLATES: Mapping[str, tuple[str, tuple[float, float, float] | None]] = {
    "plain": ("{question}", None),
    "compute": ("Compute: {question}", (0.0, 0.0, 1.0)),
    "count": ("Count: {question}", (0.0, 1.0, 0.0)),
    "steps": ("{question} = ?", (1.0, 0.0, 0.0)),
}
"""Template of configs/template/prompt_augmentation_demo.yaml → its text, and the strategies of solutions in it.

The strategies are those of `Family`; None takes the family's own.
"""


class SupervisedExample(NamedTuple):
    """A question with a written response; problems come from the buckets of the training split."""

    question: str
    response: str
    family: str


def templated_example(rng: random.Random) -> SupervisedExample:
    """Draw an example of `arithmetic` in one of `TEMPLATES`, each as often, with a solution of the template's kind."""
    text, strategies = TEMPLATES[rng.choice(list(TEMPLATES))]
    example = arithmetic_example(rng, strategies)
    return example._replace(question=text.format(question=example.question))


def arithmetic_example(rng: random.Random, strategies: tuple[float, float, float] | None = None) -> SupervisedExample:
    """Draw a question and a solution, each family by its `share`; `strategies` None are the family's own."""
    start = SPLITS["test_size" if rng.random() < LARGE_SHARE else "train"].start
    name = _family(rng, arithmetic.FAMILIES)
    family = arithmetic.FAMILIES[name]
    problem = _training(SPLITS, lambda: sample_problem(rng, SPLITS["train"].num_operations, start))
    writer = family if strategies is None else replace(family, strategies=strategies)
    return SupervisedExample(arithmetic.phrase(problem, family, rng), solution(problem, writer, rng), name)


def countdown_example(rng: random.Random) -> SupervisedExample:
    """Draw a question of three or four numbers and one of its answers, families by their `share`."""
    family = _family(rng, countdown.FAMILIES)
    count, large = rng.choice(sorted(set(countdown.COUNTS.values()))), rng.random() < LARGE_SHARE
    splits = countdown.CountdownSource.splits
    problem = _training(splits, lambda: countdown.sample_problem(rng, count, large=large))
    return SupervisedExample(countdown.phrase(problem, family, rng), problem.expression, family)


def shortest_path_example(rng: random.Random) -> SupervisedExample:
    """Draw a question and one of its answers, families by their `share`; paths of 4 to 8 steps in half of them."""
    family = _family(rng, shortest_path.FAMILIES)
    lengths, large = rng.choice((range(1, 10), range(4, 9))), rng.random() < LARGE_SHARE
    splits = shortest_path.ShortestPathSource.splits
    problem = _training(splits, lambda: shortest_path.sample_problem(rng, lengths, large=large))
    return SupervisedExample(shortest_path.phrase(problem, family, rng), rng.choice(problem.answers), family)


def _family(rng: random.Random, families: Mapping[str, Family] | Mapping[str, WordFamily]) -> str:
    return rng.choices(list(families), [family.share for family in families.values()])[0]


def _training(splits: Mapping[str, Split], draw: Callable[[], P]) -> P:
    while bucket(problem := draw()) not in splits["train"].buckets:
        pass
    return problem


def solution(problem: WordProblem, family: WordFamily, rng: random.Random) -> str:
    """Write a solution in one of the strategies of `family`, ending in the marker and the answer.

    Additions come first only where that is valid: nothing is doubled, and no value leaves 0..99. Otherwise that
    strategy goes from left to right.

    >>> problem = WordProblem(9, (Operation("-", 4), Operation("+", 1)), person=0, thing=0)
    >>> solution(problem, WordFamily("", "", (), (), (), strategies=(0, 1, 0)), random.Random(0))
    '9 + 1 = 10 - 4 = 6 #### 6'
    """
    strategy = rng.choices(("left_to_right", "additions_first", "direct"), family.strategies)[0]
    if strategy == "direct":
        return f"{ANSWER_MARKER} {problem.answer}"
    if strategy == "additions_first" and all(symbol != "*" for symbol, _ in problem.operations):
        additions_first = sorted(problem.operations, key=lambda operation: operation.symbol != "+")
        regrouped = replace(problem, operations=tuple(additions_first))
        problem = regrouped if regrouped.valid else problem
    steps = zip(problem.operations, problem.values[1:], strict=True)
    chain = " ".join(f"{symbol} {operand} = {value}" for (symbol, operand), value in steps)
    return f"{problem.start} {chain} {ANSWER_MARKER} {problem.answer}"


def words(text: str) -> list[str]:
    """Split a text as the starter's tokenizer does."""
    return re.findall(TOKEN_PATTERN, text)


def arithmetic_vocabulary() -> list[str]:
    """Every word that a question or a solution can contain, sorted; found by telling one problem in every way."""
    found = {*"0123456789", *"+-*=", ANSWER_MARKER}
    operations = (Operation("+", 2), Operation("-", 2), Operation("*", 2))
    openings = [operations[i:] + operations[:i] for i in range(3)]
    for family in arithmetic.FAMILIES.values():
        for add, subtract, double in product(family.add, family.subtract, family.double):
            single = replace(family, add=(add,), subtract=(subtract,), double=(double,))
            for opening, i in product(openings, range(len(PEOPLE))):
                problem = WordProblem(2, opening, person=i, thing=i)
                found.update(words(arithmetic.phrase(problem, single, random.Random(0))))
    return sorted(found)


def countdown_vocabulary() -> list[str]:
    """Every word that a question or an answer can hold, sorted."""
    numbers = map(str, range(1, countdown.LARGEST_TARGET + 1))
    return vocabulary_of(countdown.FAMILIES.values(), [*numbers, *OPERATORS, "(", ")"])


def shortest_path_vocabulary() -> list[str]:
    """Every word that a question or an answer can hold, sorted."""
    rows = range(1, shortest_path.WIDTH["test_size"] + 1)
    cells = [f"{column}{row}" for column in shortest_path.COLUMNS for row in rows]
    return vocabulary_of(shortest_path.FAMILIES.values(), [*cells, *DIRECTIONS])


def vocabulary_of(families: Iterable[Family], words: Iterable[str]) -> list[str]:
    """`words` and those of the families' layouts, sorted.

    >>> vocabulary_of([Family(layout="Make {target} from {numbers}.", link=" and ")], ["24"])
    ['.', '24', 'Make', 'and', 'from']
    """
    texts = [f"{re.sub('{[a-z]+}', ' ', family.layout)} {family.link}" for family in families]
    return sorted({*words, *re.findall(ANSWER_PATTERN, " ".join(texts))})
