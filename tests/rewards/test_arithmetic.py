"""Values and normal forms of formulas, against sympy and Python's own numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from tagrpo.rewards.arithmetic import DIGITS, Number, number_of, polynomial_of, same_number

X, Y = sympy.symbols("x y")


def formulas(variables):
    """LaTeX of a formula with its value by sympy."""
    leaves = st.integers(1, 9).map(lambda n: (str(n), sympy.Integer(n)))
    if variables:
        leaves |= st.sampled_from([("x", X), ("y", Y)])

    def extend(inner):
        pairs = st.tuples(inner, inner)
        grown = pairs.map(lambda p: (f"({p[0][0]}+{p[1][0]})", p[0][1] + p[1][1]))
        grown |= pairs.map(lambda p: (f"({p[0][0]}-{p[1][0]})", p[0][1] - p[1][1]))
        grown |= pairs.map(lambda p: (rf"{p[0][0]} \cdot {p[1][0]}", p[0][1] * p[1][1]))
        grown |= inner.map(lambda f: (f"({f[0]})^2", f[1] ** 2))
        if not variables:
            grown |= pairs.map(lambda p: (rf"\frac{{{p[0][0]}}}{{{p[1][0]}+10}}", p[0][1] / (p[1][1] + 10)))
            grown |= inner.map(lambda f: (rf"\sqrt{{({f[0]})^2+2}}", sympy.sqrt(f[1] ** 2 + 2)))
        return grown

    return st.recursive(leaves, extend, max_leaves=6)


@settings(deadline=None, max_examples=60)
@given(formulas(variables=False))
def test_values_are_those_of_sympy(formula):
    latex, value = formula
    number = number_of(latex)
    if number is None:  # a division by zero, or lost digits
        assert not value.is_finite or abs(value) < 1e-25 or abs(value) > 1e25
        return
    expected = sympy.nsimplify(value) if value.is_rational else value
    if number.exact:
        assert sympy.simplify(expected - sympy.Rational(number.real.numerator, number.real.denominator)) == 0
    else:
        close = abs(sympy.N(expected, 40) - sympy.Rational(number.real.numerator, number.real.denominator))
        assert close <= abs(sympy.N(expected, 40)) * sympy.Float(10) ** (1 - DIGITS)


@settings(deadline=None, max_examples=60)
@given(formulas(variables=True), formulas(variables=True))
def test_normal_forms_are_equal_if_and_only_if_the_polynomials_are(one, other):
    forms = [polynomial_of(latex) for latex, _ in (one, other)]
    assert None not in forms
    assert (forms[0] == forms[1]) == (sympy.expand(one[1] - other[1]) == 0)


@settings(deadline=None, max_examples=60)
@given(formulas(variables=True))
def test_a_normal_form_is_its_own(formula):
    form = polynomial_of(formula[0])
    assert polynomial_of(form) == form


SPELLINGS = [
    (r"\frac12", "0.5"), ("2^10", "1024"), (r"2\frac13", "7/3"), (r"\sqrt[3]{-8}", "-2"), (r"\sqrt{-4}", "2i"),
    ("3-4i", "3-4i"), (r"e^{i\pi}", "-1"), (r"\log_2 8", "3"), ("5!", "120"), (r"\binom{5}{2}", "10"), ("|3-5|", "2"),
    (r"\frac{100!}{99!}", "100"), ("0.1+0.2", "0.3"), (r"2\cdot 3/4", "1.5"), (r"\sqrt2", "1.41421356237"),
]  # fmt: skip


@pytest.mark.parametrize(("latex", "printed"), SPELLINGS)
def test_numbers_are_printed(latex, printed):
    assert str(number_of(latex)) == printed


UNREAD = [
    "1/2x", "2 3", "x2", "f(x)", r"\int x", "9^{9^{9^9}}", "3000!", r"(-8)^{1/3}", r"\frac{1}{0}", "0^0",
    "(1+x)^{100000}",     r"\sin 2x", "1+", ")", "{", r"\frac{1}", "(" * 500,
    r"\sqrt{" * 90 + "1" + "}" * 90, "", r"\ln(0)", r"\sqrt[0]{2}",
]  # fmt: skip


@pytest.mark.parametrize("latex", UNREAD)
def test_what_is_ambiguous_undefined_or_too_large_has_no_value(latex):
    assert number_of(latex) is None


def test_tiny_and_huge_numbers_are_told_apart():
    assert number_of(r"\frac{1}{2004!}") != number_of(r"\frac{1}{2006!}")
    assert number_of("2^{-1100}") != number_of("2^{-1101}")
    assert number_of("10^{1000}+1") != number_of("10^{1000}")
    assert str(number_of("10^{1000}+1")) != str(number_of("10^{1000}"))


def test_rounding_never_makes_numbers_different():
    exact, rounded = Number(Fraction(1, 3)), Number(Fraction(round(Fraction(10**25, 3)), 10**25), exact=False)
    assert same_number(exact, rounded) is None
    assert same_number(exact, Number(Fraction(1, 2), exact=False)) is False


@given(st.integers(1, 60), st.integers(1, 9), st.integers(2, 4))
def test_roots_of_one_term_are_powers(coefficient, power, index):
    """Against the rule for positive variables; roots that need an absolute value have no normal form."""
    found = polynomial_of(rf"\sqrt[{index}]{{x^{{{power}}}}}")
    exponent = Fraction(power, index)
    if index % 2 == 0 and power % 2 == 0 and exponent % 2:
        assert found is None
    else:
        assert found == polynomial_of(f"x^{{{exponent}}}")
    outside = max(root for root in range(1, 9) if coefficient % root**2 == 0)
    square_free = coefficient // outside**2
    assert polynomial_of(rf"\sqrt{{{coefficient}x}}") == polynomial_of(
        rf"{outside}\sqrt{{{square_free}}}\sqrt{{x}}"
    )
    assert polynomial_of(rf"\sqrt{{\frac{{{coefficient}}}{{x}}}}") == polynomial_of(
        rf"\frac{{{outside}\sqrt{{{square_free}}}}}{{\sqrt{{x}}}}"
    )


@pytest.mark.parametrize(
    "latex", [r"\sqrt{x^2}", r"\sqrt{x^2y}", r"(x^2)^{1/2}", r"\sqrt{-x}", r"\sqrt[0]{x}"]
)
def test_a_root_with_an_open_sign_has_no_normal_form(latex):
    assert polynomial_of(latex) is None
