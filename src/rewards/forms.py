"""Forms that an answer can have. Equal forms are equal answers; `str` of a form is the answer in votes and reports."""

from dataclasses import dataclass, field, replace
from typing import Literal

from .arithmetic import Number
from .latex import latex_of, unmarked
from .units import Unit


@dataclass(frozen=True)
class Formula:
    """Mathematics without structure of its own: a number, a polynomial, or LaTeX for a computer algebra system."""

    latex: str
    """For a computer algebra system: of the value or normal form, if there is one, else as it was written."""
    number: Number | None = None
    """Value, if there are no variables and it could be computed."""
    polynomial: str | None = None
    """Normal form, if it is a polynomial with variables."""
    is_decimal: bool = False
    """Whether the number is written as a decimal, perhaps times a power of ten, so that it may be rounded."""
    is_relation: bool = False
    """Whether it states an inequality or membership."""

    def __str__(self) -> str:
        """Print the value, else the normal form, else the LaTeX without spaces."""
        return str(self.number) if self.number else self.polynomial or compact(latex_of(self.latex))


@dataclass(frozen=True)
class Quantity:
    """A number with a unit, a counted noun, a percent sign or the ending of an ordinal."""

    amount: Formula
    unit: Unit
    product: Formula | None = field(default=None, compare=False)
    """The same letters as variables; None if they can only be a unit."""

    @property
    def number(self) -> Number | None:
        """Value of the amount, of a percentage a hundredth of it; None if it is unknown."""
        number = self.amount.number
        if number is None or self.unit.name != "percent":
            return number
        return replace(number, real=number.real / 100, imaginary=number.imaginary / 100)

    def __str__(self) -> str:
        """Print the number alone: a unit may be left out, so answers with and without it vote together."""
        return str(self.amount)


@dataclass(frozen=True)
class Based:
    """An integer or fraction in a stated base."""

    digits: str
    base: int

    def __str__(self) -> str:
        """Print the digits alone, as the base may be left out."""
        return self.digits


@dataclass(frozen=True)
class Group:
    """Several values."""

    kind: Literal["list", "set", "tuple", "interval", "union", "ratio"]
    """`list`: without brackets, in any order; `tuple`: in parentheses, or over two values in square brackets; `ratio`:
    of three or more terms, divided by the first."""
    items: "tuple[Form, ...]"
    ends: str = ""
    """Brackets of a tuple or an interval."""
    latex: str = field(default="", compare=False)

    def __str__(self) -> str:
        """Print the values; those of lists and sets once each, in alphabetical order."""
        if self.kind == "union":
            return r"\cup".join(sorted(map(str, self.items)))
        if self.kind == "ratio":
            return ":".join(map(str, self.items))
        if self.kind in ("list", "set"):
            return ", ".join(sorted({str(item) for item in self.items})) or r"\emptyset"
        return self.ends[0] + ", ".join(map(str, self.items)) + self.ends[1]


@dataclass(frozen=True)
class Matrix:
    """A matrix or column vector."""

    rows: "tuple[tuple[Form, ...], ...]"

    def __str__(self) -> str:
        """Print the rows."""
        return "[" + "; ".join(", ".join(map(str, row)) for row in self.rows) + "]"


@dataclass(frozen=True)
class Equation:
    """An equation; one whose left side is a name states the value of the name."""

    latex: str
    name: str | None = None
    """Compact spelling of the side that is a lone name."""
    value: "Form | None" = None
    """The other side."""
    alternatives: "tuple[Form, ...]" = ()
    """Further sides that state the value otherwise, as both sides of `0.56 = 56\\%` do."""

    claim: tuple[str, str] | None = None
    """Two sides in LaTeX that must be equal, or else there is no value: of `\\int_0^1 x\\,dx = \\frac12`."""

    @property
    def values(self) -> "tuple[Form, ...]":
        """Every statement of the value; empty for an equation without one."""
        return () if self.value is None else (self.value, *self.alternatives)

    def __str__(self) -> str:
        """Print the value if a name has it, else the equation."""
        has_value = self.value is not None and self.claim is None
        return str(self.value) if has_value else compact(latex_of(self.latex))


@dataclass(frozen=True)
class Conditioned:
    """An answer with a side condition."""

    value: "Form"
    condition: str
    """Compact spelling."""
    is_case: bool
    """Whether the answer holds in one case only (`if x>0`), so that it is not the answer without its condition."""

    def __str__(self) -> str:
        """Print the value, with its condition in the one case."""
        return f"{self.value} if {self.condition}" if self.is_case else str(self.value)


@dataclass(frozen=True)
class Choice:
    """The letter of an option with its content: `(B) 42`."""

    letter: str
    content: "Form"

    def __str__(self) -> str:
        """Print the letter."""
        return self.letter


@dataclass(frozen=True)
class Clock:
    """A time of day."""

    hour: str
    """Without a leading zero."""
    minutes: str
    """`:30`, with seconds if they are stated."""
    half: str | None = None
    """`am`, `pm` or None if it is not stated."""

    def __str__(self) -> str:
        """Print hour and minutes alone, as the half of the day may be left out."""
        return self.hour + self.minutes


@dataclass(frozen=True)
class Words:
    """Text, or letters in an order that counts."""

    text: str
    """In lower case, without spaces beside anything but letters and digits."""

    def __str__(self) -> str:
        """Print the text."""
        return self.text


Form = Formula | Quantity | Based | Group | Matrix | Equation | Conditioned | Choice | Clock | Words


def compact(text: str) -> str:
    """Drop marks and spaces that separate neither words nor a command from a letter."""
    kept = []
    text = " ".join(unmarked(text).split())
    for place, character in enumerate(text):
        if character == " ":
            before, after = text[place - 1], text[place + 1]
            if not (before.isalnum() and after.isalnum()):
                continue
        kept.append(character)
    return "".join(kept)
