"""Equality of two LaTeX answers as mathematics, by math-verify.

The functions here have no limits of time or memory: run them in `workers.WorkerPool`. This file imports
nothing from the package, since `sandbox.py` loads it outside the package.
"""

import logging
from cmath import isfinite
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any
from zlib import crc32

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Expr

RELATIVE_TOLERANCE = 1e-5
DIGITS = 20
"""Number of digits to which the value of a formula is computed, regardless of the exponent."""

_NORMALIZATION = replace(LatexExtractionConfig().normalization_config, units=False)
_LATEX = [LatexExtractionConfig(boxed_match_priority=0, normalization_config=_NORMALIZATION)]
_WARM_UP = (
    r"-\frac{3}{4}", r"2\sqrt{3}+\frac{\pi}{6}", r"x^2-3x+1", r"(1,-2,\frac{1}{2})", r"[0,1)\cup(2,\infty)",
    r"\{1,2,3\}", r"y=2x+3", r"\begin{pmatrix}1&0\\-1&2\end{pmatrix}", r"3-4i", r"30^\circ", r"\text{(B)}",
    r"1\le x<5", r"\log_2 5", r"1.5\times10^{-3}", r"\binom{5}{2}", r"3 \pm 2\sqrt{2}",
)  # fmt: skip


def compare(plan: bool | Sequence[Any]) -> bool:
    """Evaluate a plan of `comparison`, and return whether the plan is true.

    Formulas are equal if math-verify says so, with two exceptions. Two numbers must also agree to
    `RELATIVE_TOLERANCE`: math-verify compares decimals to six places, so that all small numbers would be
    equal. Letters are never units.
    """
    if isinstance(plan, bool):
        return plan
    kind, *parts = plan
    if kind == "all":
        return all(map(compare, parts))
    if kind == "any":
        return any(map(compare, parts))
    if kind == "match":
        return _can_match(parts[0])
    return _equal(*map(_parse, parts))


def _can_match(rows: Sequence[Sequence[Any]]) -> bool:
    """Return whether each row can get a column of its own where the plan is true (augmenting paths)."""
    holds: dict[tuple[int, int], bool] = {}
    taken: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for column, plan in enumerate(rows[row]):
            if column in seen:
                continue
            if (row, column) not in holds:
                holds[row, column] = compare(plan)
            if holds[row, column]:
                seen.add(column)
                if column not in taken or place(taken[column], seen):
                    taken[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(rows)))


@lru_cache(maxsize=1024)
def _parse(latex: str) -> tuple[list[Any], Any]:
    """Parse a formula with math-verify; return the result, and the value if it is a finite number."""
    parsed = parse(rf"\boxed{{{latex}}}", _LATEX, parsing_timeout=None)
    try:
        value = parsed[0].evalf(DIGITS)
        real, imaginary = value.as_real_imag()
        finite = real.is_Float or real.is_Rational, imaginary.is_Float or imaginary.is_Rational
    except Exception:  # a model may write anything: sets, equations, text, variables, nothing at all
        return parsed, None
    return parsed, (real, imaginary) if all(finite) else None


def _equal(reference: tuple[list[Any], Any], answer: tuple[list[Any], Any]) -> bool:
    parsed_reference, a = reference
    parsed_answer, b = answer
    if a is not None and b is not None:
        if any(map(_apart, a, b)):
            return False
    elif parsed_reference and parsed_answer and _apart_at_a_point(parsed_reference[0], parsed_answer[0]):
        return False
    return bool(verify(parsed_reference, parsed_answer, timeout_seconds=None, allow_set_relation_comp=True))


def _apart(a: Any, b: Any) -> bool:
    return bool(abs(a - b) > RELATIVE_TOLERANCE * max(abs(a), abs(b)))


def _apart_at_a_point(one: Any, other: Any) -> bool:
    """Return whether two formulas clearly differ at one fixed point, where all variables are positive.

    This avoids simplifying their difference, which takes most of the time on wrong answers. Returns False for
    formulas without a value, for sets, equations and matrices, and for formulas that may be words.
    """
    if not (isinstance(one, Expr) and isinstance(other, Expr)):
        return False
    try:
        return _apart(_value_at_a_point(one), _value_at_a_point(other))
    # a model may write anything: undefined functions, divisions by zero, matrices as factors
    except Exception:
        return False


def _value_at_a_point(formula: Expr) -> complex:
    if any(len(symbol.name) > 1 and symbol.name.isalpha() for symbol in formula.free_symbols):
        raise ValueError("words are compared letter by letter")
    point = {symbol: 1 + crc32(symbol.name.encode()) % 9973 / 9973 for symbol in formula.free_symbols}
    value = complex(formula.evalf(subs=point))
    if not isfinite(value):
        raise ValueError("no finite value")
    return value


for _library in ("math_verify", "latex2sympy2_extended"):  # they warn of every answer that does not parse
    logging.getLogger(_library).setLevel(logging.CRITICAL)
for _latex in _WARM_UP:  # fills the parser's tables before the process is forked
    compare(("same", _latex, "x+1"))
