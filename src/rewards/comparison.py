"""Equality of two canonical forms: decided at once if possible, otherwise described by a plan for a worker.

A plan is `True`, `False` or a nested tuple that JSON can represent. `equivalence.compare` evaluates it:

- `("same", one, other)`: two formulas in LaTeX are equal;
- `("all", *plans)`: every plan is true;
- `("any", *plans)`: at least one plan is true;
- `("match", rows)`: two lists of equal length can be matched one to one, where `rows[i][j]` is the plan for
  value i of one list and value j of the other.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from typing import Any, Literal

from .arithmetic import Number, same_number
from .forms import (
    Based,
    Choice,
    Clock,
    Conditioned,
    Equation,
    Form,
    Formula,
    Group,
    Matrix,
    Quantity,
    Words,
    compact,
)
from .latex import latex_of

Plan = bool | tuple[Any, ...]

DECIMAL_TOLERANCE = 1e-5
_DECIMAL_PLACES = 6
_MAX_VALUES = 100
_LETTER = re.compile(
    r"\\(?:text|mathbb|mathrm|operatorname|begin|end) ?\{[^{}]*\}"
    r"|\\(?P<greek>Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Upsilon|Phi|Psi|Omega)(?![A-Za-z])|\\[A-Za-z]+"
    r"|(?P<letter>[A-Za-z])(?: ?_ ?(?:\{(?P<group>[^{}]*)\}|(?P<sign>[0-9A-Za-z])))?"
)
"""A letter with its subscript, or a command, whose letters do not count."""
_PRIMED = re.compile(r"[A-Za-z](?:_\{?\w+\}?)?(?:'+|\^ ?\{? ?\\prime)")


@dataclass(frozen=True)
class Conventions:
    """Conventions in which graders differ; see docs/verdicts.md."""

    percent: Literal["number", "fraction", "either"] = "number"
    """Value that `50%` equals in addition to itself: 50, 0.5 or both."""
    bare_base: bool = True
    """Whether the digits of a number in a base equal the same digits without a base."""
    bare_unit: bool = True
    """Whether a number without a unit equals the same number with a unit."""
    ordered_as_list: bool = True
    """Whether `(1,2)` equals the list `1, 2` in the same order."""
    decimal_tolerance: float = DECIMAL_TOLERANCE
    """Largest relative difference between a decimal and the number that it rounds.

    Decimal and number must also agree to six decimal places."""

    def __post_init__(self) -> None:
        if self.percent not in ("number", "fraction", "either"):
            raise ValueError(
                f"Expected `percent` to be number, fraction or either, but got {self.percent!r}."
            )
        if not 0 <= self.decimal_tolerance < 1:
            raise ValueError(
                f"Expected `decimal_tolerance` between 0 and 1, but got {self.decimal_tolerance}."
            )


DEFAULT = Conventions()


def compare_forms(reference: Form, answer: Form, conventions: Conventions = DEFAULT) -> Plan:
    r"""Return a plan that compares an answer with a reference.

    Their roles differ only for letters. In a reference, a letter after a number (`6m`) is a variable unless
    it is in `\text`. In an answer to a reference without variables, such a letter is a unit.
    """
    if isinstance(reference, Quantity) and not reference.unit.certain and reference.product is not None:
        reference = reference.product
    return _Comparison(conventions).plan(reference, answer)


def all_of(plans: Iterable[Plan]) -> Plan:
    """Combine plans into a plan that is true if all of them are true."""
    return _combined("all", plans, neutral=True)


def any_of(plans: Iterable[Plan]) -> Plan:
    """Combine plans into a plan that is true if at least one of them is true."""
    return _combined("any", plans, neutral=False)


def _combined(name: str, plans: Iterable[Plan], *, neutral: bool) -> Plan:
    open_plans: list[Plan] = []
    for plan in plans:
        if plan is (not neutral):
            return not neutral
        if plan is not neutral and plan not in open_plans:
            open_plans.append(plan)
    if not open_plans:
        return neutral
    return open_plans[0] if len(open_plans) == 1 else (name, *open_plans)


def _leaf(one: str, other: str) -> Plan:
    """Return a plan to compare two formulas in a worker, in a fixed order so that equality is symmetric."""
    if set(_PRIMED.findall(one)) != set(_PRIMED.findall(other)):
        return False  # math-verify drops primes
    capitals = _capitals(one) | _capitals(other)
    return ("same", *sorted((_renamed(one, capitals), _renamed(other, capitals))))


def _capitals(latex: str) -> set[str]:
    """Return the capitals of a formula that also has the same letters in lower case."""
    letters = {match["letter"] for match in _LETTER.finditer(latex) if match["letter"]}
    return {letter for letter in letters if letter.isupper() and letter.lower() in letters}


def _renamed(latex: str, capitals: set[str]) -> str:
    """Rename capitals and all Greek capitals, since math-verify ignores case: `N` becomes `n_{NN}`."""

    def rename(match: re.Match[str]) -> str:
        letter, greek = match["letter"], match["greek"]
        if greek:
            return rf"\{greek.lower()}_{{{greek[0] * 3}}}"
        if letter not in capitals:
            return match[0]
        return f"{letter.lower()}_{{{letter}{letter}{match['group'] or match['sign'] or ''}}}"

    return _LETTER.sub(rename, latex)


@dataclass(frozen=True)
class _Comparison:
    conventions: Conventions

    def plan(self, one: Form, other: Form) -> Plan:
        if one == other:
            return True
        methods: dict[type, Callable[[Any, Form], Plan]] = {
            Conditioned: self._conditioned,
            Equation: self._equations,
            Choice: self._choices,
            Clock: self._clocks,
            Group: self._groups,
            Matrix: self._matrices,
            Based: self._bases,
            Quantity: self._quantities,
            Words: self._words,
        }
        for kind, method in methods.items():
            if isinstance(one, kind):
                return method(one, other)
            if isinstance(other, kind):
                return method(other, one)
        assert isinstance(one, Formula)
        assert isinstance(other, Formula)
        return self._formulas(one, other)

    def _conditioned(self, one: Conditioned, other: Form) -> Plan:
        if isinstance(other, Conditioned):
            return one.condition == other.condition and self.plan(one.value, other.value)
        return not one.is_case and self.plan(one.value, other)

    def _equations(self, one: Equation, other: Form) -> Plan:
        by_name = self._by_name(one, other)
        if by_name is not None:
            return by_name
        if not isinstance(other, Equation):
            if one.value is None:
                return self._relation(one.latex, other)
            stated = any_of(self.plan(value, other) for value in one.values)
            return all_of((stated, True if one.claim is None else _leaf(*one.claim)))
        if one.value is not None and other.value is not None:
            if one.name == other.name or one.name is None or other.name is None:
                return any_of(self.plan(a, b) for a in one.values for b in other.values)
            if _is_constant(one.value) or _is_constant(other.value):
                return False
        return _leaf(one.latex, other.latex)

    def _by_name(self, one: Equation, other: Form) -> Plan | None:
        """Compare `(x,y)=(1,2)` with `y=2, x=1` or `(y,x)=(2,1)`; return None for other forms."""
        parts = _parts(one)
        others = _parts(other) if isinstance(other, Equation) else other
        if parts is None or not isinstance(others, Group) or not _named_apart(others.items):
            return None
        if isinstance(other, Equation) and one.name == other.name:
            return None
        return self.plan(parts, others)

    def _relation(self, latex: str, other: Form) -> Plan:
        return _leaf(latex, other.latex) if isinstance(other, Formula) and other.is_relation else False

    def _choices(self, one: Choice, other: Form) -> Plan:
        if isinstance(other, Choice):
            return one.letter == other.letter
        return isinstance(other, Formula) and other.latex == one.letter

    def _groups(self, one: Group, other: Form) -> Plan:
        if not isinstance(other, Group):
            return self._group_and_single(one, other)
        kinds = {one.kind, other.kind}
        if kinds <= {"list", "set"}:
            return self._in_any_order(one, other)
        for group, single in ((one, other), (other, one)):
            if group.kind == "set" and len(group.items) == 1:
                return self.plan(group.items[0], single)
        if "union" in kinds:
            return self._unions(one, other)
        if kinds == {"tuple", "list"}:
            comparable = self.conventions.ordered_as_list
        elif kinds <= {"tuple", "interval"}:
            comparable = one.ends == other.ends or len(one.items) > 2
        else:
            comparable = kinds == {"ratio"}
        return comparable and self._in_order(_by_name(one.items), _by_name(other.items))

    def _unions(self, one: Group, other: Group) -> Plan:
        """Compare two groups; at least one group is a union."""
        if "list" in (one.kind, other.kind) or not (one.latex and other.latex):
            return False
        same_set = _leaf(one.latex, other.latex)
        return any_of((self._in_any_order(one, other), same_set)) if one.kind == other.kind else same_set

    def _group_and_single(self, one: Group, other: Form) -> Plan:
        items = tuple(dict.fromkeys(one.items))
        if one.kind in ("list", "set") and len(items) == 1:
            return self.plan(items[0], other)
        if one.kind == "list" and all(isinstance(item, Formula) and item.number for item in items):
            return self._in_order(items, (other,) * len(items))  # `1/2 or 0.5`
        if not isinstance(other, Formula) or one.kind in ("list", "ratio") or not one.latex:
            return False
        is_set = other.is_relation or r"\setminus" in other.latex
        return _leaf(one.latex, other.latex) if is_set else False

    def _in_order(self, one: Sequence[Form], other: Sequence[Form]) -> Plan:
        if len(one) != len(other):
            return False
        return all_of(self.plan(a, b) for a, b in zip(one, other, strict=True))

    def _in_any_order(self, one: Group, other: Group) -> Plan:
        if _named_apart(one.items) != _named_apart(other.items) and len(one.items) == len(other.items):
            return self._in_order(_by_name(one.items), _by_name(other.items))  # `x=1, y=2` and `1, 2`
        left = tuple(dict.fromkeys(one.items))
        right = tuple(dict.fromkeys(other.items))
        if not len(left) == len(right) <= _MAX_VALUES:
            return False
        shared = set(left) & set(right)
        rows = [[self._elements(a, b) for b in right if b not in shared] for a in left if a not in shared]
        return _matching(rows)

    def _elements(self, one: Form, other: Form) -> Plan:
        """Compare two values of lists. A set of one number does not equal the number."""
        return _is_set(one) == _is_set(other) and self.plan(one, other)

    def _matrices(self, one: Matrix, other: Form) -> Plan:
        if not isinstance(other, Matrix) or len(one.rows) != len(other.rows):
            return False
        if len(one.rows[0]) != len(other.rows[0]):
            return False
        return self._in_order(tuple(chain(*one.rows)), tuple(chain(*other.rows)))

    def _bases(self, one: Based, other: Form) -> Plan:
        if not self.conventions.bare_base or not isinstance(other, Formula | Words):
            return False
        digits = other.latex if isinstance(other, Formula) else other.text
        return (compact(digits).upper().lstrip("0") or "0") == one.digits

    def _clocks(self, one: Clock, other: Form) -> Plan:
        if isinstance(other, Clock):
            unstated = self.conventions.bare_unit and (one.half is None or other.half is None)
            return str(one) == str(other) and (one.half == other.half or unstated)
        if not isinstance(other, Formula | Group) or (
            one.half is not None and not self.conventions.bare_unit
        ):
            return False
        if one.half is not None and one.minutes == ":00" and other.latex == one.hour:
            return True
        return compact(other.latex) == str(one)

    def _quantities(self, one: Quantity, other: Form) -> Plan:
        if isinstance(other, Quantity):
            return one.unit.agrees(other.unit) and self._formulas(one.amount, other.amount)
        if not isinstance(other, Formula):
            return False
        if other.number is None:  # it has variables
            with_letters = one.product is not None and self._formulas(one.product, other)
            has_variables = one.number is None and self.conventions.bare_unit
            return any_of((with_letters, has_variables and self._formulas(one.amount, other)))
        if one.unit.name == "percent" and one.number is not None:
            return self._percent(one, other)
        return self.conventions.bare_unit and self._formulas(one.amount, other)

    def _percent(self, one: Quantity, other: Formula) -> Plan:
        plans = []
        if self.conventions.percent != "fraction":
            plans.append(self._formulas(one.amount, other))
        if self.conventions.percent != "number":
            fraction = replace(one.amount, latex=rf"\frac{{{one.amount.latex}}}{{100}}", number=one.number)
            plans.append(self._formulas(fraction, other))
        return any_of(plans)

    def _words(self, one: Words, other: Form) -> Plan:
        if isinstance(other, Words):
            return one.text == other.text
        return (
            isinstance(other, Formula)
            and other.number is None
            and compact(latex_of(other.latex)).casefold() == one.text
        )

    def _formulas(self, one: Formula, other: Formula) -> Plan:
        if one.number is not None and other.number is not None:
            same = same_number(one.number, other.number)
            if same is False and (one.is_decimal or other.is_decimal):
                same = self._rounded(one.number, other.number)
            if same is not None:
                return same
        elif one.polynomial is not None and other.polynomial is not None:
            if one.polynomial == other.polynomial:
                return True
            if (
                one.polynomial.casefold() == one.polynomial
                and other.polynomial.casefold() == other.polynomial
            ):
                return False
        elif one.is_relation != other.is_relation or (_is_decided(one) and _is_decided(other)):
            return False
        return _leaf(latex_of(one.latex), latex_of(other.latex))

    def _rounded(self, one: Number, other: Number) -> bool:
        """Return whether two numbers, at least one of which is written as a decimal, agree."""
        limit = Fraction(self.conventions.decimal_tolerance)
        pairs = ((one.real, other.real), (one.imaginary, other.imaginary))
        return all(
            abs(a - b) <= limit * max(abs(a), abs(b))
            and round(a, _DECIMAL_PLACES) == round(b, _DECIMAL_PLACES)
            for a, b in pairs
        )


def _is_decided(formula: Formula) -> bool:
    return formula.number is not None or formula.polynomial is not None


def _is_constant(form: Form) -> bool:
    return isinstance(form, Formula) and form.number is not None


def _is_set(form: Form) -> bool:
    return isinstance(form, Group) and form.kind == "set"


def _parts(equation: Equation) -> Group | None:
    """Return `x=1, y=2` for the equation `(x,y)=(1,2)`; None for every other equation."""
    value, name = equation.value, equation.name
    if not isinstance(value, Group) or value.kind != "tuple" or name is None or not name.startswith("("):
        return None
    names = name.strip("()").split(",")
    if not len(names) == len(value.items) == len(set(names)):
        return None
    parts = (Equation(f"{n}={item}", n, item) for n, item in zip(names, value.items, strict=True))
    return Group("list", tuple(parts))


def _by_name(items: Sequence[Form]) -> Sequence[Form]:
    """Sort values alphabetically by their names, if all names are different letters."""
    names = [str(item.name) for item in items if isinstance(item, Equation)]
    if not _named_apart(items) or not all(len(name) == 1 and name.isalpha() for name in names):
        return items
    return [item for _, item in sorted(zip(names, items, strict=True), key=lambda pair: pair[0])]


def _named_apart(items: Sequence[Form]) -> bool:
    """Return whether every value has a name, and no two names are equal."""
    names = [item.name for item in items if isinstance(item, Equation) and item.name is not None]
    return len(names) == len(items) > 1 and len(set(names)) == len(names)


def _matching(rows: list[list[Plan]]) -> Plan:
    """Combine the plans for all pairs of items of two lists into one plan."""
    if any(all(plan is False for plan in row) for row in rows):
        return False
    if any(all(row[column] is False for row in rows) for column in range(len(rows))):
        return False
    return ("match", tuple(map(tuple, rows))) if rows else True
