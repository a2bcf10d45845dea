"""The families of phrasing that word problems are told in."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from .word_problems import PEOPLE, THINGS, Problem


@dataclass(frozen=True)
class Family:
    """A way of telling problems, as templates, and its place in supervised training.

    `layout` takes {name} {he} {him} {start} {things} {events}; the clauses take {he} {him} {n}. Where there are several
    clauses for an operation, each event picks one. The first letters of sentences are capitalised afterwards.
    """

    layout: str
    link: str
    """Joins the events."""
    add: Sequence[str]
    subtract: Sequence[str]
    double: Sequence[str]
    backward: bool = False
    """Events are told from the last to the first."""
    share: float = 0.0
    """Share of the supervised examples; 0 for a family that is never trained."""
    strategies: tuple[float, float, float] = (1.0, 0.0, 0.0)
    """Shares of the solutions that go from left to right, do additions first, or give the answer directly."""


_BUYS, _SELLS = ("{he} buys {n}", "{he} finds {n}"), ("{he} sells {n}", "{he} loses {n}")
# A family that is never trained, but all its words are: clauses of several trained families, side by side.
_mixed = partial(
    Family,
    add=("{he} buys {n}", "plus {n}", "{n} are given to {him}"),
    subtract=("{he} loses {n}", "minus {n}", "{n} are taken from {him}"),
    double=("{he} doubles them", "twice"),
)

FAMILIES: Mapping[str, Family] = {
    "narrative": Family(
        layout="{name} has {start} {things}. {events}. How many?",
        link=". ",
        add=_BUYS, subtract=_SELLS, double=("{he} doubles them",),
        share=0.44, strategies=(0.75, 0.10, 0.15),
    ),
    "question_first": Family(
        layout="How many {things} does {name} have if {he} starts with {start} then {events}?",
        link=" then ",
        add=("buys {n}", "finds {n}"), subtract=("sells {n}", "loses {n}"), double=("doubles them",),
        share=0.08, strategies=(0.45, 0.15, 0.40),
    ),
    "list": Family(
        layout="{things}: start {start}; {events}; total?",
        link="; ",
        add=("plus {n}",), subtract=("minus {n}",), double=("twice",),
        share=0.20, strategies=(0.30, 0.60, 0.10),
    ),
    "passive": Family(
        layout="{start} {things} are owned by {name}. {events}. Count?",
        link=". ",
        add=("{n} are given to {him}",), subtract=("{n} are taken from {him}",), double=("they are doubled",),
        share=0.04, strategies=(0.45, 0.15, 0.40),
    ),
    "reversed": Family(
        layout="{events}. At first {name} has {start} {things}. How many?",
        link=". Before that ",
        add=_BUYS, subtract=_SELLS, double=("{he} doubles them",), backward=True,
        share=0.04, strategies=(0.35, 0.25, 0.40),
    ),
    "symbol": Family(
        layout="Compute {start} {events}.",
        link=", ",
        add=("+ {n}",), subtract=("- {n}",), double=("* 2",),
        share=0.20, strategies=(0.60, 0.20, 0.20),
    ),
    "hybrid": _mixed(layout="{name} starts with {start} {things}; {events}; total?", link="; "),
    "start_last": _mixed(layout="How many if {events}? At first {name} has {start} {things}.", link=" then "),
}  # fmt: skip


def phrase(problem: Problem, family: Family, rng: random.Random) -> str:
    """Tell `problem` in the words of `family`; `rng` picks among its synonyms.

    >>> from tagrpo.datamodules.sources.word_problems import Operation
    >>> problem = Problem(23, (Operation("+", 4), Operation("*", 2)), person=0, thing=0)
    >>> phrase(problem, FAMILIES["passive"], random.Random(0))
    '23 apples are owned by Tom. 4 are given to him. They are doubled. Count?'
    >>> phrase(problem, FAMILIES["symbol"], random.Random(0))
    'Compute 23 + 4, * 2.'
    """
    name, he, him = PEOPLE[problem.person]
    clauses = {"+": family.add, "-": family.subtract, "*": family.double}
    events = [rng.choice(clauses[symbol]).format(he=he, him=him, n=n) for symbol, n in problem.operations]
    text = family.layout.format(
        name=name,
        he=he,
        him=him,
        start=problem.start,
        things=THINGS[problem.thing],
        events=family.link.join(reversed(events) if family.backward else events),
    )
    # Sentences follow a full stop or a question mark.
    return re.sub(r"(?:^|[.?] )[a-z]", lambda match: match.group().upper(), text)
