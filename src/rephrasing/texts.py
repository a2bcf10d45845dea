r"""Texts of problems, taken apart: numbers, formulas and figures, in spellings that can be compared."""

from __future__ import annotations

import re
from functools import lru_cache

from ..rewards.extraction import canonical_number

_UNITS = "one|two|three|four|five|six|seven|eight|nine"
_TEENS = "ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen"
_TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
_VALUES = {
    **{word: n for n, word in enumerate(f"{_UNITS}|{_TEENS}".split("|"), start=1)},
    **{word: 10 * n for n, word in enumerate(_TENS.split("|"), start=2)},
    "hundred": 100,
    "thousand": 1000,
    "million": 1_000_000,
}
_WORDED = re.compile(
    rf"\b(?:({_TENS})(?:[- ]({_UNITS}))?|({_TEENS}|{_UNITS}))?\b[- ]?\b(hundred|thousand|million)?\b", re.IGNORECASE
)
_DIGITS = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+")
_FRACTION_OF_DIGITS = re.compile(r"\\[dt]?frac\s*(\d)\s*(\d)")
_MEANINGS = {
    "0": "zero origin positive negative nonzero nonnegative",
    "1": "a an one single once first each every per another alone weekly daily half halves halved third thirds quarter",
    "2": "twice double doubled doubles second couple pair both square squared half halves halved",
    "3": "thrice triple triples tripled cube cubed triangle third thirds",
    "4": "quarter quarters quadruple fourth fourths",
    "5": "fifth fifths",
    "6": "sixth sixths",
    "7": "seventh sevenths week weeks",
    "8": "eighth eighths",
    "9": "ninth ninths",
    "10": "tenth tenths",
    "12": "dozen",
    "0.5": "half",
    "1/2": "half",
    "25": "quarter",
    "50": "half",
    "100": "percent hundredth",
    "1000": "thousandth",
}
_FIGURE = re.compile(r"\[asy\].{0,8000}?\[/asy\]", re.DOTALL)
_BOUNDARY = re.compile(rf"{_FIGURE.pattern}|(?<!\\)\$+|\\[()\[\]]|\\\\|\n\s*[-*•]\s", re.DOTALL)
_SPELLINGS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\^ ?\{?\\text ?\{(st|nd|rd|th)\}\}?", r"\1"),
        (r"\\(?:begin|end|text(?:bf|it|rm)?|mbox) ?\{[^{}]*\}", "\n"),
        (r"\\(?:operatorname|mathrm)\*? ?\{([a-z]+)\}", r"\\\1 "),
        (r"\\(?:left|right|displaystyle|limits|[bB]igg?)(?![A-Za-z])|\\(?=[%$#_])|\$|\{,\}|\\!", ""),
        (r"\\[,;:> ]|\\(?:q?quad|hline)(?![A-Za-z])|[~&]", " "),
        (r"\\[dt]?frac ?(\d) ?(\d)", r"\1/\2"),
        (r"\\[dt]?frac ?\{([^{}]{1,40})\} ?\{([^{}]{1,40})\}", r"\1/\2"),
        (r"\\(?:cdot|times)(?![A-Za-z])|[·×]", "*"),
        (r"\\div(?![A-Za-z])|÷|\bdivided by\b", "/"),
        (r"\\leq?(?![A-Za-z])|≤", "<="),
        (r"\\geq?(?![A-Za-z])|≥", ">="),
        (r"\\neq?(?![A-Za-z])|\\not ?=|≠", "!="),
        (r"[−–]", "-"),
        (r"(\\[A-Za-z]+)[ {]+(?=[A-Za-z])", r"\1~"),  # \sin x is no command \sinx
        (r"[{}]", ""),
        (r" ?(!=|[-+*/^=<>|_]) ?", r"\1"),
    )
)
_BETWEEN_FORMULAS = re.compile(r"\s+|[,;](?![^()\n]{0,200}\))")
_FORMULA = re.compile(
    r".*[=<>^_|\\].*"  # relations, powers, bars, commands
    r"|.*\b[A-Za-z]\(.*|[a-z]th"  # a function of something, the nth of something
    r"|(?!.*[A-Za-z]{3})(?=.*[A-Za-z]).*[\w)][-+*/][\w(].*"  # sums and products of letters, without a word in them
)
_BY_ITSELF = re.compile(r"\d*[B-HJ-Za-z]|[A-Z]{2,5}|\d+[a-z]{1,3}|[-+*/()\d.]+[-+*/][-+*/()\d.]+")
"""A formula where it stands between dollars by itself."""
_LETTER = re.compile(r"\\[A-Za-z]+|[A-Za-z]")
_EXAMPLE = re.compile(r"(?<!\S)For (?:example|instance)\b[^?]{0,600}?\.(?!\S)")


def without_examples(text: str, other: str) -> str:
    """The text without its examples, where the other text has one too: it may be told with fewer numbers and formulas.

    >>> without_examples("Add 1. For example, 3 becomes 4. What becomes 7?", "One is added. For instance, 3 gives 4. …")
    'Add 1.   What becomes 7?'
    """
    return _EXAMPLE.sub(" ", text) if _EXAMPLE.search(other) else text


def numbers(text: str) -> set[str]:
    r"""Numbers in digits or as words, in their canonical spelling; the word `one`, by itself, is none.

    >>> sorted(numbers(r"$1,200 at 5.50% for \frac13 of twenty-one months; one of two hundred"))
    ['1', '1200', '200', '21', '3', '5.5']
    """
    text = _FRACTION_OF_DIGITS.sub(r" \1 / \2 ", text.replace("{,}", ",").replace("\\!", ""))
    worded = set()
    for tens, unit, small, scale in _WORDED.findall(text.lower()):
        if tens or scale or small not in ("", "one"):
            below = sum(_VALUES[word] for word in (tens, unit, small) if word) or 1
            worded.add(str(below * _VALUES.get(scale, 1)))
    return {canonical_number(found) or found for found in _DIGITS.findall(text)} | worded


def loose_numbers(text: str) -> set[str]:
    """Numbers that words of the text may stand for, and need not: 2 for `twice`, 1 for `a`.

    >>> sorted(loose_numbers("Twice as many in a week"))
    ['1', '2', '7']
    """
    words = set(re.findall("[a-z]+", text.lower()))
    return {number for number, names in _MEANINGS.items() if not words.isdisjoint(names.split())}


@lru_cache(maxsize=1024)
def _spelled(text: str) -> str:
    """The text in one spelling, with line breaks where math mode may begin or end."""
    text = "\n".join(" ".join(part.split()) for part in _BOUNDARY.split(text))
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    return text


def compact(text: str) -> str:
    r"""A text whose formulas do not depend on spaces, braces, dollars and synonyms; without the words in them.

    >>> compact(r"\dfrac{1}{2} \cdot x^{2} \leq 3"), compact("Is $1/2 × x^2 ≤ 3 \\text{ cm}$?")
    ('1/2*x^2<=3', 'Is 1/2*x^2<=3 ?')
    """
    return " ".join(_spelled(text).split())


@lru_cache(maxsize=1024)
def formulas(text: str) -> frozenset[str]:
    r"""What reads as a formula, in or out of math mode, cut at spaces and at commas outside of brackets.

    >>> sorted(formulas(r"If $f(x,y)=3,\ x>0$ for $x$ and it costs \$5 - not 6 - what is 2 * x?"))
    ['2*x', 'f(x,y)=3', 'x', 'x>0']
    """
    found = set()
    for part in _spelled(text).split("\n"):
        pieces = [piece.strip("().,;:?~") for piece in _BETWEEN_FORMULAS.split(part)]
        found |= {piece for piece in pieces if _FORMULA.fullmatch(piece)}
        found |= {piece for piece in pieces if _BY_ITSELF.fullmatch(piece) and len(pieces) == 1}
    return frozenset(found)


def figures(text: str) -> list[str]:
    """Figures given as Asymptote code, spaces left out, sorted."""
    return sorted("".join(figure.split()) for figure in _FIGURE.findall(text))


def holds(text: str, spelled: str) -> bool:
    r"""Whether a formula or a word, in its `compact` spelling, stands in a text and is no part of a longer one.

    >>> holds("How many are $6 \\cdot 7$?", "6*7"), holds("There are 426.", "42"), holds("Find it.", "n")
    (True, False, False)
    """
    if spelled.isalpha():
        return bool(re.search(rf"(?<![A-Za-z\\]){spelled}(?![A-Za-z])", text, re.IGNORECASE if len(spelled) > 1 else 0))
    return bool(re.search(rf"(?<![\d.]){re.escape(spelled)}(?!\.?\d)", compact(text)))


def variables(piece: str) -> set[str]:
    """The letters of a formula that are no part of a command."""
    return {letter for letter in _LETTER.findall(piece) if len(letter) == 1}


def with_names(piece: str, names: dict[str, str]) -> str:
    r"""The piece with other letters for its variables.

    >>> with_names(r"\sin(ax)+x_1", {"x": "t"})
    '\\sin(at)+t_1'
    """
    return _LETTER.sub(lambda match: names.get(match[0], match[0]), piece)
