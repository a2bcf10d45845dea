"""What is judged, and what a judgement looks like."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple


class Pair(NamedTuple):
    """A question and one rephrasing of it."""

    question: str
    """The original."""
    rephrasing: str
    """The text that is judged."""
    answer: tuple[str, ...] = ()
    """Reference answers, any of which is correct."""
    renames: bool = False
    """Whether the rephrasing was meant to rename variables or people."""
    others: tuple[str, ...] = ()
    """Rephrasings of the same question that were accepted before."""


class Verdict(NamedTuple):
    """The outcome of one check."""

    check: str
    """Name of the check."""
    passed: bool | None
    """None where the check could not decide."""
    reason: str
    """For a reader: what was found."""
    value: float | None = None
    """What was measured, where something was."""


Check = Callable[[Pair], Verdict]


def accepted(verdicts: Iterable[Verdict], undecided: bool = True) -> bool:
    """Whether no check failed; `undecided` says what a check counts as that could not decide.

    >>> accepted([Verdict("a", True, ""), Verdict("b", None, "")]), accepted([Verdict("b", None, "")], undecided=False)
    (True, False)
    """
    return all(undecided if verdict.passed is None else verdict.passed for verdict in verdicts)


def review(pair: Pair, checks: Mapping[str, Check]) -> list[Verdict]:
    """The verdict of every check, each under the name that it has in `checks`."""
    return [check(pair)._replace(check=name) for name, check in checks.items()]


def listed(items: Iterable[str], most: int = 5) -> str:
    """Some of the items for a message.

    >>> listed("abc", most=2)
    'a, b and 1 more'
    """
    found = sorted(items)
    shown = ", ".join(found[:most])
    return shown if len(found) <= most else f"{shown} and {len(found) - most} more"


def names(verdicts: Sequence[Verdict]) -> list[str]:
    """Names of the checks that failed."""
    return [verdict.check for verdict in verdicts if verdict.passed is False]
