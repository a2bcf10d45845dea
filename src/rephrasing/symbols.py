"""Whether the formulas of a question are in its rephrasing, perhaps with other names for the variables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from .candidates import Pair, Verdict
from .texts import compact, figures, formulas, holds, pieces, prose, shape, variables, without_examples

_TRIES = 2000
"""Steps of the search for a renaming. Real texts need some dozens; texts made for it would take for ever."""
_NO_VARIABLES = re.compile(r"(e)|(?<!_)(i)|(d)[a-z\\]|([CP])(?:[_^]|\((?:[A-Z\\]|[^()]*,))")
"""Letters that may be none: constants, differentials, combinations, probabilities. In formulas without commands."""
_UNITS = set("mgshtlLNJWVKF")
_COORDINATES = re.compile(
    r"ax[ei]s\b|intercept|coordinate|plane\b|graph|slope|vertical|horizontal|quadrant|parabola|ellipse|hyperbola|"
    r"\b(?:lines?|points?)\b",
    re.IGNORECASE,
)
"""Where x is horizontal and y vertical."""
_NOT_ZERO = re.compile(
    r"\bnon-?zero\b|\bnot (?:equal to )?(?:0|zero)\b|\b(?:none|neither)\b[^.?!]{0,80}\bzero\b", re.IGNORECASE
)


def symbols_kept(pair: Pair) -> Verdict:
    r"""Every formula of the original is in the rephrasing, and no other; figures are copied.

    Formulas are cut at commas and compared in a compact spelling, in any order; one may stand in the other text without
    dollars, and that something is not zero may be told in words. Of an example (`For instance, …`) some may be missing.
    Variables may have other names where that cannot change the answer: each is renamed everywhere, to a letter that the
    original does not have, and none of them is in the answer or a coordinate.

    >>> symbols_kept(Pair("If $x^2=4$, find $x$.", "Find $x$ such that $x^2=-4$.")).reason
    'missing: x^2=4; new: x^2=-4'
    >>> symbols_kept(Pair("If $x^2=4$, find $x$.", "If $y^2=4$, find $y$.")).reason
    'all 2 formulas kept up to names: x → y'
    """
    old, new = pair.question, pair.rephrasing
    if Counter(figures(old)) != Counter(figures(new)):
        return Verdict("symbols_kept", False, "a figure is missing or changed")
    before, after = _pieces(old) - _told(old, new), _pieces(new) - _told(new, old)
    missing, added = _lacking(before & _pieces(without_examples(old, new)), after, new), _lacking(after, before, old)
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


def _told(text: str, other: str) -> set[str]:
    """The formulas of `text` which say that something is not zero, if `other` says so in words and `text` does not."""
    in_words = len(_NOT_ZERO.findall(other)) > len(_NOT_ZERO.findall(text))
    return {piece for piece in _pieces(text) if in_words and re.fullmatch("[A-Za-z]+!=0", piece)}


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
    (alone, old), (others, new) = _letters_apart(before), _letters_apart(after)
    if Counter(map(shape, old)) != Counter(map(shape, new)):
        return None
    # Long formulas first: they settle most names.
    ordered = sorted(old, key=lambda piece: (-len(piece), piece))
    names = _search(ordered, frozenset(new), {}, iter(range(_TRIES)))
    # Letters that are formulas by themselves may stand in the prose of one text.
    image = {names[letter] for letter in alone} if names is not None else set()
    return names if image <= others or others <= image else None


def _letters_apart(pieces: Iterable[str]) -> tuple[set[str], set[str]]:
    """Pieces that are one letter of another piece, and all the others."""
    letters = {letter for piece in pieces if len(piece) > 1 for letter in variables(piece)}
    return letters & set(pieces), set(pieces) - letters


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
    read = {letter for piece in _pieces(pair.question) | _pieces(pair.rephrasing) for letter in _no_variables(piece)}
    yield letters & read, "such a letter often is no variable"
    yield new & {letter for piece in before for letter in variables(piece)}, "a new name is another variable"
    yield letters & {a for answer in pair.answer for a in variables(compact(answer))}, "the answer has such a letter"
    beside = _COORDINATES.search(pair.question) and letters & set("xyz")
    yield beside or figures(pair.question), "letters have a meaning beside coordinates and figures"
    kept = (old & _spoken(pair.rephrasing)) | (new & _spoken(pair.question))
    yield kept, "such a letter stands outside of the formulas"
    alone = {a for a in old for piece in before if re.search(rf"(?<![\d.]){a}", piece)}
    yield (old & _UNITS) - alone, "such a letter may be a unit"


def _no_variables(piece: str) -> set[str]:
    letters = re.sub(r'"[^"]*"|\\[A-Za-z]+', r"\\", piece)
    return {letter for found in _NO_VARIABLES.findall(letters) for letter in found if letter}


def _spoken(text: str) -> set[str]:
    """Letters outside of the formulas, those of labels such as ABC too; a, A and I are words."""
    return set("".join(re.findall(r"(?<![A-Za-z'’])(?!(?:A|I)\b)(?:[b-z]|[A-Z]{1,5})(?![A-Za-z])", prose(text))))


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
