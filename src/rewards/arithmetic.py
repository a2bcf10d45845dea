r"""Exact values of closed forms such as `\frac{\sqrt{8}}{2}`, and normal forms of polynomials, from LaTeX.

Formulas are untrusted. No function here raises on formulas or evaluates them as code, and sizes are bounded:
nesting, digits, exponents and terms. Formulas outside the grammar (integrals, unknown functions, ambiguous
spellings such as `1/2x`) have no value and no normal form here, and are left to a computer algebra system.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from hashlib import sha256
from math import comb, factorial, gcd, isqrt
from typing import Any

Tree = tuple[Any, ...]
"""`(operation, operand, …)`; leaves are `("number", Fraction)` and `("symbol", name)`."""
Monomial = tuple[int, tuple[tuple[str, Fraction], ...]]
"""(square-free integer under a square root, powers of symbols in alphabetical order)."""
Polynomial = Mapping[Monomial, Fraction]
"""Monomial → coefficient, not 0."""

DIGITS = 25
"""Significant digits in comparisons of irrational numbers, which are computed with 80 digits."""
_PRECISION = 80
_NEGLIGIBLE = Fraction(1, 10**30)
_HUGE = Fraction(10**30)
_MAX_BITS = 1 << 15
_MAX_EXPONENT = 64
_MAX_TERMS = 400
_MAX_DEPTH = 40
_MAX_TOKENS = 300
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[0-9]+(?:\.[0-9]*)?|\.[0-9]+|\s+|.", re.DOTALL)
_GREEK_NAMES = """
alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon
phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega pi infty
"""
GREEK = frozenset(_GREEK_NAMES.split())
_FUNCTIONS = frozenset(("sin", "cos", "tan", "cot", "sec", "csc", "ln", "exp"))
_CALLED = frozenset("fghFGHP")
"""Letters that name a function more often than a factor if a parenthesis follows."""


class _UnreadableError(ValueError):
    """Error for a formula outside the grammar of this module."""


@dataclass(frozen=True)
class Number:
    """A complex number. Two numbers are equal if both parts are.

    Irrational parts are rounded to `DIGITS` digits.
    """

    real: Fraction
    imaginary: Fraction = Fraction(0)
    exact: bool = True
    """Whether both parts are exact, not rounded."""

    @property
    def is_short(self) -> bool:
        """Whether `str` returns the number exactly."""
        parts = (self.real, self.imaginary)
        return self.exact and all(
            max(abs(part.numerator), part.denominator).bit_length() < 200 for part in parts
        )

    def __str__(self) -> str:
        """Return a fraction or a short decimal; irrational parts have 12 digits."""
        if not self.imaginary:
            return _printed(self.real, self.exact)
        imaginary = _printed(self.imaginary, self.exact)
        imaginary = {"1": "", "-1": "-"}.get(imaginary, imaginary) + "i"
        if not self.real:
            return imaginary
        sign = "" if imaginary.startswith("-") else "+"
        return _printed(self.real, self.exact) + sign + imaginary


def _printed(value: Fraction, exact: bool) -> str:
    if not exact:
        with localcontext(prec=12):
            rounded = +(Decimal(value.numerator) / Decimal(value.denominator))
        return format(rounded.normalize(), "f" if -6 < rounded.adjusted() < 15 else "")
    for decimals in range(5):
        if 10**decimals % value.denominator == 0:
            return _decimal(value, decimals)
    return f"{_whole(value.numerator)}/{_whole(value.denominator)}"


def _decimal(value: Fraction, decimals: int) -> str:
    scaled = int(value * 10**decimals)
    if not decimals:
        return _whole(scaled)
    digits = _whole(abs(scaled)).rjust(decimals + 1, "0")
    sign = "-" if scaled < 0 else ""
    return f"{sign}{digits[:-decimals]}.{digits[-decimals:]}"


def _whole(value: int) -> str:
    """Return an integer in decimal; beyond 60 digits, its first digits, the power of ten and a digest."""
    if value.bit_length() < 200:
        return str(value)
    digest = sha256(hex(value).encode()).hexdigest()[:12]
    return f"{Decimal(value):.6e}#{digest}"


def same_number(one: Number, other: Number) -> bool | None:
    """Return whether two numbers are equal; None if rounding leaves the answer open."""
    if one == other:
        return True
    if one.exact == other.exact or _apart(one.real, other.real) or _apart(one.imaginary, other.imaginary):
        return False
    return None


def _apart(one: Fraction, other: Fraction) -> bool:
    limit = max(abs(one), abs(other)) / 10 ** (DIGITS - 2)
    return bool(abs(one - other) > limit)


@lru_cache(maxsize=4096)
def tree_of(latex: str) -> Tree | None:
    r"""Parse a formula; return None if the formula is outside the grammar.

    >>> tree_of(r"\frac12 x"), tree_of("1/2x")
    (('*', ('/', ('number', Fraction(1, 1)), ('number', Fraction(2, 1))), ('symbol', 'x')), None)
    """
    try:
        return _Parser(latex).whole()
    except _UnreadableError:
        return None


def number_of(latex: str) -> Number | None:
    r"""Return the value of a formula without variables; None if the formula has no value.

    `i`, `e` and `\pi` are constants.

    >>> [str(number_of(text)) for text in (r"\frac12", r"2\sqrt2", r"(1+\sqrt5)(1-\sqrt5)", "3-4i", "x")]
    ['0.5', '2.82842712475', '-4', '3-4i', 'None']
    """
    tree = tree_of(latex)
    if tree is None:
        return None
    try:
        return _rounded(_value(tree))
    except (ArithmeticError, ValueError):
        return None


def polynomial_of(latex: str) -> str | None:
    r"""Return the normal form of a polynomial; None if the formula is not a polynomial.

    Powers of variables may be negative, and coefficients may have square roots of integers. Equal polynomials
    have equal forms.

    >>> polynomial_of("(x+1)^2"), polynomial_of(r"2\sqrt{8}y - y"), polynomial_of("2^x")
    ('x^{2}+2x+1', '-y+4\\sqrt{2}y', None)
    """
    tree = tree_of(latex)
    if tree is None:
        return None
    try:
        return _spelled(_terms(tree))
    except (ArithmeticError, ValueError):
        return None


class _Parser:
    """Parser by recursive descent over the tokens of a formula.

    Raises:
        _UnreadableError: if the formula is outside the grammar.
    """

    def __init__(self, latex: str) -> None:
        self.tokens = [token for token in _TOKEN.findall(latex) if not token.isspace()]
        if len(self.tokens) > _MAX_TOKENS:  # trees are walked by recursion
            raise _UnreadableError
        self.at = 0
        self.depth = 0

    def whole(self) -> Tree:
        tree = self.sum()
        if self.at < len(self.tokens):
            raise _UnreadableError
        return tree

    @property
    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.next
        if not token or (expected and token != expected):
            raise _UnreadableError
        self.at += 1
        return token

    def sum(self) -> Tree:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise _UnreadableError
        sign = self.take() if self.next in ("+", "-") else "+"
        tree = self.product()
        tree = ("*", ("number", Fraction(-1)), tree) if sign == "-" else tree
        while self.next in ("+", "-"):
            sign = self.take()
            term = self.product()
            tree = ("+", tree, ("*", ("number", Fraction(-1)), term) if sign == "-" else term)
        self.depth -= 1
        return tree

    def product(self) -> Tree:
        literal = _is_number(self.next)
        tree = self.power()
        divided = False
        while True:
            if self.next in ("*", r"\cdot", r"\times"):
                self.take()
                literal = False
                tree = ("*", tree, self.power())
            elif self.next in ("/", r"\div"):
                self.take()
                tree = ("/", tree, self.power())
                divided = True
            elif not self.begins_factor():
                return tree
            elif divided or _is_number(self.next):
                raise _UnreadableError  # `1/2x`, `2 3`, `x2`
            else:
                mixed = literal and self.next == r"\frac" and tree[0] == "number"
                factor = self.power()
                fraction = factor[0] == "/" and factor[1][0] == factor[2][0] == "number"
                tree = ("+" if mixed and fraction else "*", tree, factor)
                literal = False

    def begins_factor(self) -> bool:
        token = self.next
        if token.startswith("\\"):
            name = token[1:]
            return name in GREEK or name in _FUNCTIONS or name in ("frac", "sqrt", "binom", "log")
        return token in ("(", "{", "[") or _is_number(token) or (token.isascii() and token.isalpha())

    def power(self) -> Tree:
        tree = self.atom()
        while self.next in ("^", "!"):
            if self.take() == "!":
                tree = ("!", tree)
            else:
                tree = ("^", tree, self.exponent())
                if self.next == "^":
                    raise _UnreadableError
        return tree

    def exponent(self) -> Tree:
        """Read an exponent: all digits after `^`, or an argument if no digit follows.

        `2^10` is meant to have the exponent 10, whatever LaTeX prints.
        """
        return ("number", Fraction(self.take())) if _is_digits(self.next) else self.argument()

    def argument(self) -> Tree:
        """Read one argument of a command: a group, or a single digit, letter or command."""
        token = self.next
        if token == "{":
            return self.group("{", "}")
        if _is_number(token):
            if "." in token:
                raise _UnreadableError
            self.tokens[self.at : self.at + 1] = list(token)  # `\frac12` takes one digit at a time
            return ("number", Fraction(self.take()))
        if token == "-":
            raise _UnreadableError
        return self.atom()

    def group(self, opening: str, closing: str) -> Tree:
        self.take(opening)
        tree = self.sum()
        self.take(closing)
        return tree

    def atom(self) -> Tree:  # noqa: PLR0911
        token = self.next
        if _is_number(token):
            return ("number", Fraction(self.take().rstrip(".")))
        if token in ("(", "{", "["):
            return self.group(token, {"(": ")", "{": "}", "[": "]"}[token])
        if token == "|":
            return ("abs", self.group("|", "|"))
        self.take()
        if len(token) == 1 and token.isascii() and token.isalpha():
            if token in _CALLED and self.next == "(":
                raise _UnreadableError
            return self.subscripted(token)
        if token == r"\frac":
            numerator = self.argument()
            return ("/", numerator, self.argument())
        if token == r"\binom":
            above = self.argument()
            return ("binom", above, self.argument())
        if token == r"\sqrt":
            index: Tree = self.group("[", "]") if self.next == "[" else ("number", Fraction(2))
            return ("root", self.argument(), index)
        if token == r"\log":
            return self.logarithm()
        if token.startswith("\\") and token[1:] in _FUNCTIONS:
            return ("function", token[1:], self.of_function())
        if token.startswith("\\") and token[1:] in GREEK:
            return self.subscripted(token)
        raise _UnreadableError

    def logarithm(self) -> Tree:
        self.take("_")
        base = self.argument()
        return ("/", ("function", "ln", self.of_function()), ("function", "ln", base))

    def of_function(self) -> Tree:
        r"""Read the argument of a function: one factor, perhaps in degrees; `\sin 2x` is not read."""
        tree = self.atom()
        if self.tokens[self.at : self.at + 4] == ["^", "{", r"\circ", "}"]:
            self.at += 4
            tree = ("*", tree, ("/", ("symbol", r"\pi"), ("number", Fraction(180))))
        if self.next == "^" or self.begins_factor():
            raise _UnreadableError
        return tree

    def subscripted(self, name: str) -> Tree:
        if self.next != "_":
            return ("symbol", name)
        self.take()
        if self.next != "{":
            return ("symbol", f"{name}_{{{self.take()}}}")
        parts = [self.take()]
        while parts[-1] != "}":
            parts.append(self.take())
            if parts[-1] == "{":
                raise _UnreadableError
        return ("symbol", f"{name}_{''.join(parts)}")


def _is_digits(token: str) -> bool:
    return token.isascii() and token.isdigit()


def _is_number(token: str) -> bool:
    return _is_digits(token[:1]) or (token[:1] == "." and len(token) > 1)


def _integer(value: Any) -> int:
    if not isinstance(value, Fraction) or value.denominator != 1:
        raise _UnreadableError
    return value.numerator


def _exact_power(base: Fraction, exponent: int) -> Fraction:
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits * abs(exponent) > _MAX_BITS or (not base and exponent <= 0):
        raise _UnreadableError
    return base**exponent


def _factorial(value: Any) -> Fraction:
    number = _integer(value)
    if not 0 <= number <= 2500:
        raise _UnreadableError
    return Fraction(factorial(number))


def _binomial(above: Any, below: Any) -> Fraction:
    n = _integer(above)
    k = _integer(below)
    if not 0 <= k <= n <= 3000:
        raise _UnreadableError
    return Fraction(comb(n, k))


def _bounded(value: Any) -> Any:
    if (
        isinstance(value, Fraction)
        and max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS
    ):
        raise _UnreadableError
    return value


def _value(tree: Tree) -> Any:  # noqa: PLR0911
    """Evaluate a tree: a Fraction if it is rational, otherwise an mpmath number of `_PRECISION` digits."""
    operation, *operands = tree
    if operation == "number":
        return _bounded(operands[0])
    if operation == "symbol":
        return _constant(operands[0])
    if operation == "function":
        return _function(operands[0], _value(operands[1]))
    values = [_value(operand) for operand in operands]
    if operation == "!":
        return _factorial(values[0])
    if operation == "binom":
        return _binomial(*values)
    if operation == "abs":
        return abs(values[0])
    if operation == "root":
        return _root(values[0], _integer(values[1]))
    if operation == "^":
        return _power(*values)
    if not all(isinstance(value, Fraction) for value in values):
        values = [_inexact(value) for value in values]
    first, second = values
    if operation == "+":
        return _bounded(first + second)
    if operation == "*":
        return _bounded(first * second)
    return _bounded(first / second)


@lru_cache(maxsize=1)
def _mp() -> Any:
    """Return a context of mpmath, which is imported only when an irrational number occurs."""
    from mpmath import MPContext

    context = MPContext()
    context.dps = _PRECISION
    return context


def _inexact(value: Any) -> Any:
    if not isinstance(value, Fraction):
        return value
    context = _mp()
    return context.mpf(value.numerator) / context.mpf(value.denominator)


def _constant(name: str) -> Any:
    context = _mp()
    constants = {r"\pi": context.pi, "e": context.e}
    if name == "i":
        return context.mpc(0, 1)
    if name not in constants:
        raise _UnreadableError
    return +constants[name]


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(exponent, Fraction) and exponent.denominator == 1:
        if isinstance(base, Fraction):
            return _exact_power(base, exponent.numerator)
    elif isinstance(base, Fraction) and base <= 0:
        raise _UnreadableError  # a principal value or a real root
    base = _inexact(base)
    exponent = _inexact(exponent)
    context = _mp()
    if not base and isinstance(exponent, context.mpf) and exponent > 0:
        return base
    if not base or abs(exponent) > 1e6 or abs(exponent * context.log(abs(base), 2)) > 1e6:
        raise _UnreadableError
    return base**exponent


def _root(value: Any, index: int) -> Any:
    if not 2 <= index <= 1000:
        raise _UnreadableError
    context = _mp()
    if isinstance(value, Fraction) and value < 0:
        root = context.root(_inexact(-value), index)
        if index == 2:
            return root * context.mpc(0, 1)
        if index % 2:
            return -root
        raise _UnreadableError
    return context.root(_inexact(value), index)


def _function(name: str, value: Any) -> Any:
    argument = _inexact(value)
    if abs(argument) > 1e6:
        raise _UnreadableError
    if name == "ln" and not (argument.imag == 0 and argument.real > 0):
        raise _UnreadableError
    function: Callable[[Any], Any] = getattr(_mp(), name)
    return function(argument)


def _rounded(value: Any) -> Number:
    if isinstance(value, Fraction):
        return Number(value)
    real = _fraction(value.real)
    imaginary = _fraction(value.imag)
    size = abs(real) + abs(imaginary)
    parts = [_part(part, size) for part in (real, imaginary)]
    exact = all(is_exact for _, is_exact in parts)
    if not exact:
        parts = [(_to_digits(part), False) for part, _ in parts]
    return Number(parts[0][0], parts[1][0], exact)


def _part(found: Fraction, size: Fraction) -> tuple[Fraction, bool]:
    """Return the real or imaginary part `found` of a number as a fraction, and whether the fraction is exact.

    A fraction counts as exact if the part equals it beyond reasonable doubt. `size` is |real| + |imaginary|.
    """
    if abs(found) <= _NEGLIGIBLE**2 * size:
        return Fraction(0), True
    if not _NEGLIGIBLE < abs(found) < _HUGE:
        raise _UnreadableError  # digits may have cancelled
    near = found.limit_denominator(10**9)
    if abs(found - near) < _NEGLIGIBLE * abs(found):
        return near, True
    return found, False


def _fraction(value: Any) -> Fraction:
    """Convert an mpmath float to a fraction."""
    if not _mp().isfinite(value):
        raise _UnreadableError
    mantissa = int(value.man)
    exponent = int(value.exp)
    if abs(exponent) > 1 << 16:
        raise _UnreadableError
    sign = -1 if value < 0 else 1
    return Fraction(sign * abs(mantissa)) * Fraction(2) ** exponent


def _to_digits(value: Fraction) -> Fraction:
    with localcontext(prec=DIGITS):
        return Fraction(Decimal(value.numerator) / Decimal(value.denominator))


def _terms(tree: Tree) -> Polynomial:  # noqa: PLR0911
    """Expand a tree to a polynomial.

    Raises:
        _UnreadableError: if the tree is not a polynomial within the bounds.
    """
    operation, *operands = tree
    if operation == "number":
        return _clean({(1, ()): _bounded(operands[0])})
    if operation == "symbol":
        return {(1, ((operands[0], Fraction(1)),)): Fraction(1)}
    if operation in ("!", "binom"):
        return _clean({(1, ()): _bounded(_value(tree))})
    if operation == "root":
        return _root_terms(_terms(operands[0]), _integer(_value(operands[1])))
    if operation == "^":
        return _power_terms(_terms(operands[0]), _value(operands[1]))
    if operation not in ("+", "*", "/"):
        raise _UnreadableError
    first, second = (_terms(operand) for operand in operands)
    if operation == "+":
        return _clean({m: first.get(m, Fraction(0)) + second.get(m, Fraction(0)) for m in {*first, *second}})
    return _times(first, _inverse(second) if operation == "/" else second)


def _clean(terms: Polynomial) -> Polynomial:
    if len(terms) > _MAX_TERMS:
        raise _UnreadableError
    return {monomial: coefficient for monomial, coefficient in terms.items() if _bounded(coefficient)}


def _times(first: Polynomial, second: Polynomial) -> Polynomial:
    if len(first) * len(second) > 16 * _MAX_TERMS:
        raise _UnreadableError
    terms: dict[Monomial, Fraction] = {}
    for (radical, powers), coefficient in first.items():
        for (other_radical, other_powers), other in second.items():
            shared = gcd(radical, other_radical)
            exponents = dict(powers)
            for name, exponent in other_powers:
                exponents[name] = exponents.get(name, Fraction(0)) + exponent
            factor = coefficient * other * shared
            turns = exponents.get("i", Fraction(0))
            if abs(turns) >= 2 or turns < 0:
                if turns.denominator != 1:
                    raise _UnreadableError
                factor *= -1 if turns % 4 in (2, 3) else 1
                exponents["i"] = turns % 2
            kept = tuple(sorted((name, exponent) for name, exponent in exponents.items() if exponent))
            monomial = (radical * other_radical // shared**2, kept)
            terms[monomial] = terms.get(monomial, Fraction(0)) + factor
    return _clean(terms)


def _inverse(terms: Polynomial) -> Polynomial:
    if len(terms) != 1:
        raise _UnreadableError
    ((radical, powers), coefficient), *_ = terms.items()
    inverted = tuple((name, -exponent) for name, exponent in powers)
    return _times({(radical, inverted): 1 / (coefficient * radical)}, {(1, ()): Fraction(1)})


def _power_terms(terms: Polynomial, exponent: Any) -> Polynomial:
    if isinstance(exponent, Fraction) and exponent.denominator > 1 and abs(exponent) < _MAX_EXPONENT:
        root = _root_terms(terms, exponent.denominator)
        return _power_terms(root, Fraction(exponent.numerator))
    power = _integer(exponent)
    if abs(power) > _MAX_EXPONENT:
        ((monomial, coefficient), *more) = terms.items()
        if more or monomial[0] != 1:
            raise _UnreadableError
        if not monomial[1]:
            return _clean({(1, ()): _exact_power(coefficient, power)})
        raise _UnreadableError
    base = terms if power >= 0 else _inverse(terms)
    result: Polynomial = {(1, ()): Fraction(1)}
    for _ in range(abs(power)):
        result = _times(result, base)
    return result


def _root_terms(terms: Polynomial, index: int) -> Polynomial:
    r"""Return a root of one term, for positive variables.

    Roots of sums, and roots with an absolute value, such as `\sqrt{x^2}`, are refused. Of coefficients, only
    square roots are taken.
    """
    if len(terms) != 1:
        raise _UnreadableError
    ((radical, powers), coefficient), *_ = terms.items()
    if radical != 1 or coefficient <= 0 or (index != 2 and coefficient != 1):
        raise _UnreadableError
    if not 2 <= index <= _MAX_EXPONENT:
        raise _UnreadableError
    rooted = []
    for name, power in powers:
        has_sign = index % 2 == 1 or power.numerator % 2 == 1 or power / index % 2 == 0
        if name == "i" or not has_sign:
            raise _UnreadableError
        rooted.append((name, power / index))
    square_free, outside = _square_free(coefficient.numerator * coefficient.denominator)
    return {(square_free, tuple(rooted)): Fraction(outside, coefficient.denominator)}


def _square_free(number: int) -> tuple[int, int]:
    """Split a positive integer into a square-free part and the root of the square, by trial division."""
    if number > 10**12:
        raise _UnreadableError
    rest = number
    outside = 1
    square_free = 1
    divisor = 2
    while divisor**3 <= rest:
        while rest % divisor**2 == 0:
            rest //= divisor**2
            outside *= divisor
        if rest % divisor == 0:
            rest //= divisor
            square_free *= divisor
        divisor += 1
    root = isqrt(rest)
    if root**2 == rest:
        return square_free, outside * root
    return square_free * rest, outside


def _spelled(terms: Polynomial) -> str:
    """Spell the terms in a fixed order: highest degree first, then alphabetically."""

    def order(monomial: Monomial) -> tuple[Any, ...]:
        radical, powers = monomial
        return (
            -sum(exponent for _, exponent in powers),
            [(name, -exponent) for name, exponent in powers],
            radical,
        )

    spelled = "".join(_term(monomial, terms[monomial]) for monomial in sorted(terms, key=order))
    return spelled.removeprefix("+") or "0"


def _term(monomial: Monomial, coefficient: Fraction) -> str:
    radical, powers = monomial
    factors = rf"\sqrt{{{radical}}}" if radical != 1 else ""
    for name, exponent in powers:
        gap = " " if factors and factors[-1].isalpha() and "\\" in factors and name.isalpha() else ""
        factors += gap + (name if exponent == 1 else f"{name}^{{{exponent}}}")
    size = abs(coefficient)
    whole = _whole(size.numerator)
    shown = whole if size.denominator == 1 else rf"\frac{{{whole}}}{{{_whole(size.denominator)}}}"
    sign = "-" if coefficient < 0 else "+"
    return sign + ("" if size == 1 and factors else shown) + factors
