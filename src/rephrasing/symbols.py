"""Whether the formulas of a question are in its rephrasing, perhaps with other names for the variables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from .candidates import Pair, Verdict
from .texts import compact, figures, formulas, holds, pieces, prose, shape, variables

_TRIES = 2000
"""Steps of the search for a renaming. Real texts need some dozens; texts made for it would take for ever."""
_NO_VARIABLES = set("eidCP")
"""Letters that often are no variables: constants, differentials, combinations, probabilities."""
_UNITS = set("mgshtlLNJWVKF")
_LETTERS_MATTER = re.compile(
    r"ax[ei]s\b|intercept|coordinate|plane\b|graph|slope|vertical|horizontal|quadrant|parabola|ellipse|hyperbola|"
    r"\b(?:lines?|points?)\b|\[asy\]",
    re.IGNORECASE,
)
"""Where x is horizontal and y vertical, or a figure has labels."""


def symbols_kept(pair: Pair) -> Verdict:
    r"""Every formula of the original is in the rephrasing, and no other; figures are copied.

    Formulas are cut at commas and compared in a compact spelling, in any order; one may stand in the other text without
    dollars. Variables may have other names where that cannot change the answer: each is renamed everywhere, to a letter
    that the original does not have, and none of them is in the answer, in the prose or beside coordinates.

    >>> symbols_kept(Pair("If $x^2=4$, find $x$.", "Find $x$ such that $x^2=-4$.")).reason
    'missing: x^2=4; new: x^2=-4'
    >>> symbols_kept(Pair("If $x^2=4$, find $x$.", "If $y^2=4$, find $y$.")).reason
    'all 2 formulas kept up to names: x → y'
    """
    old, new = pair.question, pair.rephrasing
    if Counter(figures(old)) != Counter(figures(new)):
        return Verdict("symbols_kept", False, "a figure is missing or changed")
    before, after = _pieces(old), _pieces(new)
    missing, added = _lacking(before, after, new), _lacking(after, before, old)
    if not missing and not added:
        return Verdict("symbols_kept", True, f"all {len(before)} formulas kept")
    names = renaming(before, after)
    if names is None:
        return Verdict("symbols_kept", False, differences(missing, added))
    changed = {a: b for a, b in names.items() if a != b}
    shown = listed(f"{a} → {b}" for a, b in changed.items())
    if doubts := [reason for found, reason in _doubts(pair, changed, before) if found]:
        return Verdict("symbols_kept", False, f"renamed {shown}, but {doubts[0]}")
    return Verdict("symbols_kept", True, f"all {len(before)} formulas kept up to names: {shown}")


def _pieces(text: str) -> set[str]:
    return {piece for formula in formulas(text) for piece in pieces(formula)}


def _lacking(wanted: set[str], there: set[str], text: str) -> set[str]:
    plain, whole = {piece.replace('"', "") for piece in there}, compact(text).replace('"', "")
    letters = {letter for piece in there for letter in variables(piece)}
    known = plain | letters | {piece for piece in wanted if piece.isalpha() and holds(text, piece)}
    lacking = {piece for piece in wanted if piece.replace('"', "") not in known}
    return {piece for piece in lacking if piece.isalpha() or piece.replace('"', "") not in whole}


def renaming(before: Iterable[str], after: Iterable[str]) -> dict[str, str] | None:
    r"""Names of variables, one to one, that turn the formulas `before` into `after`; None where none were found.

    >>> renaming(["x+2y=7", "x-y=1"], ["p-q=1", "p+2q=7"])
    {'x': 'p', 'y': 'q'}
    >>> renaming(["x+2y=7", "x-y=1"], ["q-p=1", "p+2q=7"]) is None
    True
    """
    if Counter(map(shape, before)) != Counter(map(shape, after)):
        return None
    # Long formulas first: they settle most names.
    ordered = sorted(before, key=lambda piece: (-len(piece), piece))
    return _search(ordered, frozenset(after), {}, iter(range(_TRIES)))


def _search(
    before: list[str], after: frozenset[str], names: dict[str, str], tries: Iterator[int]
) -> dict[str, str] | None:
    if not before:
        return names
    first, *rest = before
    for candidate in sorted(after, key=lambda piece: (piece != first, piece)):
        if shape(candidate) == shape(first) and next(tries, None) is not None:
            extended = dict(names)
            pairs = zip(variables(first), variables(candidate), strict=True)
            agreed = all(extended.setdefault(old, new) == new for old, new in pairs)
            if agreed and len(set(extended.values())) == len(extended):
                found = _search(rest, after - {candidate}, extended, tries)
                if found is not None:
                    return found
    return None


def _doubts(pair: Pair, changed: dict[str, str], before: set[str]) -> Iterator[tuple[object, str]]:
    """Whether other names may change the answer, and why, reason by reason."""
    old, new = set(changed), set(changed.values())
    letters = old | new
    yield letters & _NO_VARIABLES, "such a letter often is no variable"
    yield new & {letter for piece in before for letter in variables(piece)}, "a new name is another variable"
    yield letters & {a for answer in pair.answer for a in variables(compact(answer))}, "the answer has such a letter"
    yield _LETTERS_MATTER.search(pair.question), "letters have a meaning beside coordinates and figures"
    # Labels such as ABC, too; a, A and I are words.
    text = f"{prose(pair.question)} {prose(pair.rephrasing)}"
    spoken = re.findall(r"(?<![A-Za-z'’])(?!(?:A|I)\b)(?:[b-z]|[A-Z]{1,5})(?![A-Za-z])", text)
    yield letters & set("".join(spoken)), "such a letter stands outside of the formulas"
    alone = {a for a in old for piece in before if re.search(rf"(?<![\d.]){a}", piece)}
    yield (old & _UNITS) - alone, "such a letter may be a unit"


def differences(missing: Iterable[str], new: Iterable[str]) -> str:
    """What is missing and what is new, for a message; empty where nothing is.

    >>> differences("b", "fedcba")
    'missing: b; new: a, b, c, d, e and 1 more'
    """
    return "; ".join(f"{name}: {listed(items)}" for name, items in (("missing", missing), ("new", new)) if items)


def listed(items: Iterable[str], most: int = 5) -> str:
    """Some of the items, for a message."""
    found = sorted(items)
    return ", ".join(found[:most]) + (f" and {len(found) - most} more" if len(found) > most else "")
