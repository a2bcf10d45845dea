"""Check that a rephrasing has the formulas of its question, perhaps with renamed variables."""

import re
from itertools import permutations

from .candidates import Pair, Verdict
from .texts import compact, figures, formulas, holds, prose, variables, with_names, without_examples

_MOST_RENAMED = 6  # variables; a rephrasing that renames more is refused
_NO_VARIABLES = re.compile(r"e|(?<!_)i|d(?=[a-z\\])|[CP](?=[_^]|\((?:[A-Z\\]|[^()]*,))")
"""Pattern of letters that may be no variables: constants, differentials, combinations, probabilities.

Text is matched without LaTeX commands.
"""
_NOT_ZERO = re.compile(
    r"\bnon-?zero\b|\bnot (?:equal to )?(?:0|zero)\b|\b(?:none|neither)\b[^.?!]{0,80}\bzero\b", re.IGNORECASE
)


def symbols_kept(pair: Pair) -> Verdict:
    r"""Check that the rephrasing has exactly the formulas of the original, and unchanged figures.

    Formulas are cut at commas and compared in a compact spelling, in any order. A formula of one text may
    appear without dollars in the other text, `x ≠ 0` may be written in words, and formulas of an example
    (`For instance, …`) may be missing from the rephrasing. Variables may have other names if that can't
    change the answer: each is renamed everywhere, to a letter that the original does not have, and no renamed
    variable is in the answer, a figure or the text around the formulas.

    >>> symbols_kept(Pair("If $x^2=4$, find $x$.", "Find $x$ such that $x^2=-4$.")).reason
    'missing: x^2=4; new: x^2=-4'
    >>> symbols_kept(Pair("If $x^2=4$, find $x$.", "If $y^2=4$, find $y$.")).reason
    'all 2 formulas kept up to names: x → y'
    """
    old, new = pair.question, pair.rephrasing
    if figures(old) != figures(new):
        return Verdict("symbols_kept", False, "a figure is missing or changed")
    before, after = _not_told(old, new), _not_told(new, old)
    missing = _lacking(before & formulas(without_examples(old, new)), after, new)
    found = differences(missing, _lacking(after, before, old))
    if not found:
        return Verdict("symbols_kept", True, f"all {len(before)} formulas kept")
    names = renaming(before, after)
    if names is None:
        return Verdict("symbols_kept", False, found)
    shown = ", ".join(f"{a} → {b}" for a, b in names.items())
    if doubt := _doubt(pair, names):
        return Verdict("symbols_kept", False, f"renamed {shown}, but {doubt}")
    return Verdict("symbols_kept", True, f"all {len(before)} formulas kept up to names: {shown}")


def _not_told(text: str, other: str) -> set[str]:
    """Return the formulas of a text.

    `x!=0` is left out if the other text says more often in words that something is not 0.
    """
    in_words = len(_NOT_ZERO.findall(other)) > len(_NOT_ZERO.findall(text))
    return {piece for piece in formulas(text) if not (in_words and re.fullmatch("[A-Za-z]+!=0", piece))}


def _lacking(wanted: set[str], there: set[str], text: str) -> set[str]:
    """Return `wanted` pieces that are neither among the formulas `there` nor, without dollars, in `text`."""
    whole = compact(text).replace('"', "")
    return {
        piece
        for piece in wanted - there - variables(there)
        if not (holds(text, piece) if piece.isalpha() else piece.replace('"', "") in whole)
    }


def renaming(before: set[str], after: set[str]) -> dict[str, str] | None:
    """Return new names for variables that turn the formulas `before` into `after`; None if no names do.

    >>> renaming({"x+2y=7", "x-y=1"}, {"p-q=1", "p+2q=7"}), renaming({"x+2y=7", "x-y=1"}, {"q-p=1", "p+2q=7"})
    ({'x': 'p', 'y': 'q'}, None)
    """
    old, new = variables(before), variables(after)
    lost, gained = sorted(old - new), sorted(new - old)
    if len(lost) == len(gained) <= _MOST_RENAMED:
        for letters in permutations(gained):
            names = dict(zip(lost, letters, strict=True))
            renamed = {with_names(piece, names) for piece in before}
            # Formulas of one letter may stand in the prose of one text.
            if renamed ^ after <= new and (renamed <= after or after <= renamed):
                return names or None
    return None


def _doubt(pair: Pair, names: dict[str, str]) -> str:
    """Return why other names may change the answer; empty if they can't."""
    old, new = set(names), set(names.values())
    pieces = formulas(pair.question) | formulas(pair.rephrasing)
    bare = [re.sub(r'"[^"]*"|\\[A-Za-z]+', r"\\", piece) for piece in pieces]
    doubts = {
        "such a letter often is no variable": (old | new) & set().union(*map(_NO_VARIABLES.findall, bare)),
        "the answer has such a letter": (old | new) & variables(map(compact, pair.answer)),
        "letters have a meaning in a figure": figures(pair.question),
        "such a letter stands outside of the formulas": old & _spoken(pair.rephrasing)
        or new & _spoken(pair.question),
    }
    return next((reason for reason, found in doubts.items() if found), "")


def _spoken(text: str) -> set[str]:
    """Return the letters outside formulas, including those of labels such as ABC; a, A and I are words."""
    return set(
        "".join(re.findall(r"(?<![A-Za-z'’])(?!(?:A|I)\b)(?:[b-z]|[A-Z]{1,5})(?![A-Za-z])", prose(text)))
    )


def differences(missing: set[str], new: set[str]) -> str:
    """List missing and new items for a message; empty if there are no such items."""
    found = {"missing": missing, "new": new}
    return "; ".join(f"{name}: {', '.join(sorted(items))}" for name, items in found.items() if items)
