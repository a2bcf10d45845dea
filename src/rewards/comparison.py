"""Equality of two canonical forms: decided at once if possible, else described by a plan for a worker.

A plan is `True`, `False` or a nested tuple that JSON can carry, which `equivalence.compare` carries out:

- `("same", one, other)`: two formulas in LaTeX are equal;
- `("all", *plans)`, `("any", *plans)`: every plan is true, or at least one is;
- `("match", rows)`: `rows[i][j]` says whether value i of one list equals value j of the other, and the lists,
  equally long, can be matched one to one.
"""

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


@dataclass(frozen=True)
class Conventions:
    """Conventions in which graders differ; see docs/verdicts.md."""

    percent: Literal["number", "fraction", "either"] = "number"
    """Value that `50%` equals besides itself: 50, 0.5 or both."""
    bare_base: bool = True
    """Whether the digits of a number in a base are equal to the same number without a base."""
    bare_unit: bool = True
    """Whether a number without a unit equals the same number with a unit."""
    ordered_as_list: bool = True
    """Whether `(1,2)` equals `1, 2`, in the same order."""
    decimal_tolerance: float = DECIMAL_TOLERANCE
    """Largest relative difference between a decimal and the number that it rounds.

    The two must also agree to six decimals."""

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
    r"""Return a plan that compares an answer with a reference; roles differ only for letters.

    In a reference, a letter after a number (`6m`) is a variable unless it is in `\text`; in an answer to a
    reference without variables it is a unit.
    """
    if isinstance(reference, Quantity) and not reference.unit.certain and reference.product is not None:
        reference = reference.product
    return _Comparison(conventions).plan(reference, answer)


def all_of(plans: Iterable[Plan]) -> Plan:
    """Combine plans so that all must be true."""
    return _combined("all", plans, neutral=True)


def any_of(plans: Iterable[Plan]) -> Plan:
    """Combine plans so that at least one must be true."""
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
    """Return a plan for the worker: two formulas in a fixed order, so that equality is symmetric."""
    return ("same", *sorted((one, other)))


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
        if "union" in kinds:
            return self._unions(one, other)
        if kinds == {"tuple", "list"}:
            comparable = self.conventions.ordered_as_list
        elif kinds <= {"tuple", "interval"}:
            comparable = one.ends == other.ends or len(one.items) > 2
        else:
            comparable = kinds == {"ratio"}
        return comparable and self._in_order(one.items, other.items)

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
            return self._in_order(one.items, other.items)  # `x=1, y=2` and `1, 2`
        left = tuple(dict.fromkeys(one.items))
        right = tuple(dict.fromkeys(other.items))
        if not len(left) == len(right) <= _MAX_VALUES:
            return False
        shared = set(left) & set(right)
        rows = [[self.plan(a, b) for b in right if b not in shared] for a in left if a not in shared]
        return _matching(rows)

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
            return one.product is not None and self._formulas(one.product, other)
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
        """Return whether two numbers, one of them written as a decimal, agree."""
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
