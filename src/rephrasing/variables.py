r"""Other letters for the variables of a problem."""

from __future__ import annotations

import re

from .sentences import Problem
from .texts import math_spans

_LETTER = re.compile(r"\\[A-Za-z]+|[A-Za-z]+")
_RENAMED = "xyznkabc"
"""Letters that are nearly always variables. Others are units (m, g, s, t), constants (e, i), functions (f, g, h)."""
_NEW = "uvwpqrst"
_CONVENTION = re.compile(
    r"ax[ei]s\b|intercept|coordinate|plane|graph|parabola|ellipse|hyperbola|circle|slope|vertex|triangle|polygon|quadrilateral|"
    r"square|rectangle|angle|sides?\b|base\b|digit|\bpolar|cylind|spher|complex|vector|matri|function|inverse|degree|"
    r"derivative|integral|\bline|point|variable|letter|in terms of|form\b|polynomial",
    re.IGNORECASE,
)
"""Where letters have a conventional meaning, or the answer may have to name them."""
_TEXT = re.compile(r"\\(?:text|mbox|mathrm|operatorname)\*?\s*\{[^{}]*\}")


def rename_variables(problem: Problem) -> str | None:
    r"""Give one or several variables other letters.

    Only letters that stand in formulas and nowhere else, that the answer does not hold, and whose every occurrence is a
    variable beyond doubt: alone, or in a product of letters that occur alone as well. Nothing is renamed in problems of
    geometry or calculus or about coordinates, digits, functions and polynomials, where letters have a meaning.

    >>> rename_variables(Problem.of("If $x = 3$, what is the value of $2x + 3$?", ("9",)))
    'If $s = 3$, what is the value of $2s + 3$?'
    >>> rename_variables(Problem.of("Expand $(x+1)^2$.", ("x^2+2x+1",)))
    """
    question = problem.question
    if _CONVENTION.search(question) or "[asy]" in question or "\\begin" in question:
        return None
    spans = math_spans(question)
    formulas = [_TEXT.sub("", span[0]) for span in spans]
    runs = [run for formula in formulas for run in _LETTER.findall(formula) if not run.startswith("\\")]
    alone = {run for run in runs if len(run) == 1}
    letters = {letter for run in runs for letter in run}
    if any(len(run) > 1 and not set(run) <= alone for run in runs):
        return None  # mod, cm, gcd without a command, or labels such as ABC
    prose, position = [], 0
    for span in spans:
        prose.append(question[position : span.start()])
        position = span.end()
    prose.append(question[position:])
    outside = {word for part in prose for word in re.findall(r"(?<![A-Za-z'’])[A-Za-z](?![A-Za-z])", part)} - {
        "a",
        "A",
        "I",
    }
    texts = {word for span in spans for text in _TEXT.findall(span[0]) for word in re.findall(r"\b[A-Za-z]\b", text)}
    answered = {
        letter for text in problem.answer for run in _LETTER.findall(text) for letter in run if not run.startswith("\\")
    }
    if outside or answered & letters:
        return None
    old = [letter for letter in _RENAMED if letter in alone and letter not in texts]
    free = [letter for letter in _NEW if letter not in letters | texts and letter.upper() not in letters]
    if not old or len(free) < len(old):
        return None
    names = dict(zip(old, sorted(problem.rng.sample(free, len(old))), strict=True))
    parts = [prose[0]]
    for span, following in zip(spans, prose[1:], strict=True):
        parts += [_renamed(span[0], names), following]
    return "".join(parts)


def _renamed(formula: str, names: dict[str, str]) -> str:
    """The formula with every letter outside of commands and texts looked up in `names`."""

    def replace(match: re.Match[str]) -> str:
        token = match[0]
        return token if token.startswith("\\") else "".join(names.get(letter, letter) for letter in token)

    return re.sub(rf"{_TEXT.pattern}|{_LETTER.pattern}", replace, formula)
