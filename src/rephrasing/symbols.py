"""Whether the formulas of a question are in its rephrasing, perhaps with other names for the variables."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import permutations

from .candidates import Pair, Verdict
from .texts import compact, figures, formulas, holds, variables, with_names, without_examples

_MOST_RENAMED = 6
"""Variables; a text that renames more is refused."""
_SPOKEN = re.compile(r"(?<![A-Za-z'’\\])(?!(?:A|I)\b)(?:[b-z]|[A-Z]{1,5})(?![A-Za-z])")
"""Letters that stand alone, and labels such as ABC; a, A and I are words."""
_COORDINATES = re.compile(
    r"ax[ei]s\b|intercept|coordinate|plane\b|graph|slope|vertical|horizontal|quadrant|parabola|ellipse|hyperbola|"
    r"\b(?:lines?|points?)\b",
    re.IGNORECASE,
)
"""Where x is horizontal and y vertical."""


def symbols_kept(pair: Pair) -> Verdict:
    r"""Every formula of the original is in the rephrasing, and no other; figures are copied.

    Formulas are compared in a compact spelling, in any order, in or out of math mode. Of an example (`For instance, …`)
    some may be missing. Variables may have other names where that cannot change the answer: each is renamed everywhere,
    to a letter that the original does not have, and none of them is in the answer or a coordinate.

    >>> symbols_kept(Pair("If $x^2=4$, find $x$.", "Find $x$ such that $x^2=-4$.")).reason
    'missing: x^2=4; new: x^2=-4'
    >>> symbols_kept(Pair("If $x^2=4$, find $x$.", "If $y^2=4$, find $y$.")).reason
    'all 2 formulas kept up to names: x → y'
    """
    old, new = pair.question, pair.rephrasing
    if figures(old) != figures(new):
        return Verdict("symbols_kept", False, "a figure is missing or changed")
    before, after = formulas(old), formulas(new)
    names = renaming(pair)
    if names is None:
        missing = {piece for piece in before - after if not holds(new, piece)}
        added = {piece for piece in after - before if not holds(old, piece)}
        return Verdict("symbols_kept", False, differences(missing, added) or "formulas are renamed one by one")
    shown = listed(f"{a} → {b}" for a, b in names.items())
    if doubt := _doubt(pair, names):
        return Verdict("symbols_kept", False, f"renamed {shown}, but {doubt}" if names else doubt)
    return Verdict("symbols_kept", True, f"all {len(before)} formulas kept{f' up to names: {shown}' if names else ''}")


def renaming(pair: Pair) -> dict[str, str] | None:
    r"""Other names for variables under which the formulas are the same; empty for their own, None where there are none.

    >>> renaming(Pair("Let $x+2y=7$ and $x-y=1$.", "Let $p-q=1$ and $p+2q=7$."))
    {'x': 'p', 'y': 'q'}
    >>> renaming(Pair("Let $x+2y=7$ and $x-y=1$.", "Let $q-p=1$ and $p+2q=7$.")) is None
    True
    """
    old, new = pair.question, pair.rephrasing
    before, after = formulas(old), formulas(new)
    required = before & formulas(without_examples(old, new))
    lost = sorted(_letters(required) - _letters(after) - _spoken(new))
    gained = sorted(_letters(after) - _letters(before) - _spoken(old))
    if len(lost) == len(gained) <= _MOST_RENAMED:
        for others in permutations(gained):
            names, back = dict(zip(lost, others, strict=True)), dict(zip(others, lost, strict=True))
            if _all_in(new, required, names) and _all_in(old, after, back):
                return names
    return None


def _all_in(text: str, pieces: Iterable[str], names: dict[str, str]) -> bool:
    """Whether the formulas are in the text. That something is not zero may be told in words; the 0 is a number."""
    renamed = {with_names(piece, names) for piece in pieces if len(piece) > 1 and not piece.endswith("!=0")}
    return all(holds(text, piece) for piece in renamed - formulas(text))


def _spoken(text: str) -> set[str]:
    return set("".join(_SPOKEN.findall(text)))


def _letters(pieces: Iterable[str]) -> set[str]:
    return set().union(*map(variables, pieces))


def _doubt(pair: Pair, names: dict[str, str]) -> str:
    """Why the names may change the answer, or something else may be asked for; empty where neither can be."""
    letters = {*names, *names.values()}
    if letters & _letters(map(compact, pair.answer)):
        return "the answer has such a letter"
    if names and (figures(pair.question) or (_COORDINATES.search(pair.question) and letters & set("xyz"))):
        return "letters have a meaning beside coordinates and figures"
    old, new = ({piece for piece in formulas(text) if len(piece) == 1} for text in pair[:2])
    old = {names.get(letter, letter) for letter in old}
    return "" if old <= new or new <= old else f"other letters are spoken of: {listed(new - old)}"


def differences(missing: Iterable[str], new: Iterable[str]) -> str:
    """Missing and new items, for a message; empty where there are none.

    >>> differences("b", "fedcba")
    'missing: b; new: a, b, c, d, e and 1 more'
    """
    return "; ".join(f"{name}: {listed(items)}" for name, items in (("missing", missing), ("new", new)) if items)


def listed(items: Iterable[str], most: int = 5) -> str:
    """Some of the items, for a message."""
    found = sorted(items)
    return ", ".join(found[:most]) + (f" and {len(found) - most} more" if len(found) > most else "")
