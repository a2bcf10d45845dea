"""The starter policy of `arithmetic`: solutions to learn from, and their words."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import product

from transformers import PreTrainedTokenizerFast

from tagrpo.lab.tasks.arithmetic.source import (
    FAMILIES,
    PEOPLE,
    SPLITS,
    ArithmeticSource,
    Family,
    Operation,
    Problem,
    phrase,
    sample_problem,
)

from .parts import LARGE_SHARE, Starter, SupervisedExample, draw_family, draw_training, word_level_tokenizer

ANSWER_MARKER = "####"
TOKEN_PATTERN = r"####|[0-9]|[A-Za-z]+|[^\sA-Za-z0-9]"
"""One token: a word, a digit, a punctuation mark, or the answer marker."""

TEMPLATES: Mapping[str, tuple[str, tuple[float, float, float] | None]] = {
    "plain": ("{question}", None),
    "compute": ("Compute: {question}", (0.0, 0.0, 1.0)),
    "count": ("Count: {question}", (0.0, 1.0, 0.0)),
    "steps": ("{question} = ?", (1.0, 0.0, 0.0)),
}
"""Template of configs/template/prompt_augmentation_demo.yaml → its text, and the strategies of solutions in it.

The strategies are those of `Family`; None takes the family's own.
"""


def templated_example(rng: random.Random) -> SupervisedExample:
    """Draw an example in one of `TEMPLATES`, each as often, with a solution of the template's kind."""
    text, strategies = TEMPLATES[rng.choice(list(TEMPLATES))]
    example = arithmetic_example(rng, strategies)
    return example._replace(question=text.format(question=example.question))


def arithmetic_example(
    rng: random.Random, strategies: tuple[float, float, float] | None = None
) -> SupervisedExample:
    """Draw a question and a solution, each family by its `share`; `strategies` None are the family's own."""
    start = SPLITS["test_size" if rng.random() < LARGE_SHARE else "train"].start
    name = draw_family(rng, FAMILIES)
    family = replace(FAMILIES[name], strategies=strategies or FAMILIES[name].strategies)
    problem = draw_training(
        SPLITS, lambda: sample_problem(rng, SPLITS["train"].num_operations, start).asked
    ).told
    return SupervisedExample(phrase(problem, family, rng), solution(problem, family, rng), name)


def solution(problem: Problem, family: Family, rng: random.Random) -> str:
    """Write a solution in one of the strategies of `family`, ending in the marker and the answer.

    Additions come first only where that is valid: nothing is doubled, and no value leaves 0..99. Otherwise that
    strategy goes from left to right.

    >>> problem = Problem(9, (Operation("-", 4), Operation("+", 1)), person=0, thing=0)
    >>> solution(problem, Family("", "", (), (), (), strategies=(0, 1, 0)), random.Random(0))
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
    for family in FAMILIES.values():
        for add, subtract, double in product(family.add, family.subtract, family.double):
            single = replace(family, add=(add,), subtract=(subtract,), double=(double,))
            for first, i in product(range(3), range(len(PEOPLE))):
                problem = Problem(2, operations[first:] + operations[:first], person=i, thing=i)
                found.update(words(phrase(problem, single, random.Random(0))))
    return sorted(found)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build the word-level tokenizer of the embedded task: one token per word, digit or punctuation mark.

    Decoding gives the text back exactly: digits are joined, and no space goes before `. , ; : ?`. Two numbers
    in a row therefore come back as one. Words outside the vocabulary become `<unk>`.

    >>> build_tokenizer().tokenize("He buys 14. <sep>")
    ['He', 'buys', '1', '4', '.', '<sep>']
    """
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "sep_token": "<sep>", "unk_token": "<unk>"}
    joined_digits = (r"(?<=[0-9]) (?=[0-9])", "")
    return word_level_tokenizer(arithmetic_vocabulary(), TOKEN_PATTERN, special, [joined_digits])


STARTER = Starter(ArithmeticSource, arithmetic_example, build_tokenizer)
TEMPLATES_STARTER = Starter(ArithmeticSource, templated_example, build_tokenizer)
"""The same, having seen every template of prompt_augmentation_demo."""
