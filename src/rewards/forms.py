"""Forms of an answer. Equal forms are equal answers. `str` of a form is the answer in votes and reports."""

from dataclasses import dataclass, field, replace
from typing import Literal

from .arithmetic import Number
from .latex import latex_of, unmarked
from .units import Unit


@dataclass(frozen=True)
class Formula:
    """Mathematics without further structure: number, polynomial, or LaTeX for a computer algebra system."""

    latex: str
    """LaTeX for a computer algebra system: the value or normal form if there is one, or the original text."""
    number: Number | None = None
    """Value; None if the formula has variables or the value could not be computed."""
    polynomial: str | None = None
    """Normal form; None if the formula is not a polynomial with variables."""
    is_decimal: bool = False
    """Whether the number is written as a decimal, perhaps times a power of ten, and may be rounded."""
    is_relation: bool = False
    """Whether the formula states an inequality or a membership."""

    def __str__(self) -> str:
        """Return the value, or the normal form, or the LaTeX without spaces, whichever there is first."""
        return str(self.number) if self.number else self.polynomial or compact(latex_of(self.latex))


@dataclass(frozen=True)
class Quantity:
    """Number with a unit, a counted noun, a percent sign or the ending of an ordinal."""

    amount: Formula
    unit: Unit
    product: Formula | None = field(default=None, compare=False)
    """The quantity with its letters as variables; None if the letters can only be a unit."""

    @property
    def number(self) -> Number | None:
        """Value of the amount, divided by 100 for a percentage; None if the value is unknown."""
        number = self.amount.number
        if number is None or self.unit.name != "percent":
            return number
        return replace(number, real=number.real / 100, imaginary=number.imaginary / 100)

    def __str__(self) -> str:
        """Return only the number, so that answers with and without a unit vote together."""
        return str(self.amount)


@dataclass(frozen=True)
class Based:
    """Integer or fraction in a stated base."""

    digits: str
    base: int

    def __str__(self) -> str:
        """Return only the digits, since the base may be left out."""
        return self.digits


@dataclass(frozen=True)
class Group:
    """Several values."""

    kind: Literal["list", "set", "tuple", "interval", "union", "ratio"]
    """Kind of the group.

    `list`: without brackets, in any order; `tuple`: in parentheses, or more than two values in square
    brackets; `ratio`: three or more terms, divided by the first."""
    items: "tuple[Form, ...]"
    ends: str = ""
    """Brackets of a tuple or an interval."""
    latex: str = field(default="", compare=False)

    def __str__(self) -> str:
        """Return the values; lists and sets print each value once, in alphabetical order."""
        if self.kind == "union":
            return r"\cup".join(sorted(map(str, self.items)))
        if self.kind == "ratio":
            return ":".join(map(str, self.items))
        if self.kind in ("list", "set"):
            return ", ".join(sorted({str(item) for item in self.items})) or r"\emptyset"
        return self.ends[0] + ", ".join(map(str, self.items)) + self.ends[1]


@dataclass(frozen=True)
class Matrix:
    """Matrix or column vector."""

    rows: "tuple[tuple[Form, ...], ...]"

    def __str__(self) -> str:
        """Return the rows."""
        return "[" + "; ".join(", ".join(map(str, row)) for row in self.rows) + "]"


@dataclass(frozen=True)
class Equation:
    """Equation. If its left side is a name, the equation states the value of this name."""

    latex: str
    name: str | None = None
    """Compact spelling of the side that is only a name; None if neither side is."""
    value: "Form | None" = None
    """Value that the equation states: the other side; None if there is none."""
    alternatives: "tuple[Form, ...]" = ()
    """Further sides that state the same value in another form, as in `0.56 = 56\\%`."""

    claim: tuple[str, str] | None = None
    """Two sides in LaTeX that must be equal for the value to count: `\\int_0^1 x\\,dx = \\frac12`."""

    @property
    def values(self) -> "tuple[Form, ...]":
        """All statements of the value; empty for an equation without a value."""
        return () if self.value is None else (self.value, *self.alternatives)

    def __str__(self) -> str:
        """Return the value if the equation only states a value, otherwise the equation."""
        has_value = self.value is not None and self.claim is None
        return str(self.value) if has_value else compact(latex_of(self.latex))


@dataclass(frozen=True)
class Conditioned:
    """Answer with a side condition."""

    value: "Form"
    condition: str
    """Compact spelling of the condition."""
    is_case: bool
    """Whether the answer is valid in one case only (`if x>0`), and not without its condition."""

    def __str__(self) -> str:
        """Return the value, followed by its condition if `is_case` is true."""
        return f"{self.value} if {self.condition}" if self.is_case else str(self.value)


@dataclass(frozen=True)
class Choice:
    """Letter of an option, with the option's content: `(B) 42`."""

    letter: str
    content: "Form"

    def __str__(self) -> str:
        """Return the letter."""
        return self.letter


@dataclass(frozen=True)
class Clock:
    """Time of day."""

    hour: str
    """Hour without a leading zero."""
    minutes: str
    """Minutes, such as `:30`, with seconds if they are stated."""
    half: str | None = None
    """`am` or `pm`; None if not stated."""

    def __str__(self) -> str:
        """Return only hour and minutes, since the half of the day may be left out."""
        return self.hour + self.minutes


@dataclass(frozen=True)
class Words:
    """Text, or letters whose order counts."""

    text: str
    """Text in lower case, without spaces except between letters and digits."""

    def __str__(self) -> str:
        """Return the text."""
        return self.text


Form = Formula | Quantity | Based | Group | Matrix | Equation | Conditioned | Choice | Clock | Words


def compact(text: str) -> str:
    """Drop marks around words, and every space except between two letters or digits."""
    kept = []
    text = " ".join(unmarked(text).split())
    for place, character in enumerate(text):
        if character == " ":
            before = text[place - 1]
            after = text[place + 1]
            if not (before.isalnum() and after.isalnum()):
                continue
        kept.append(character)
    return "".join(kept)
