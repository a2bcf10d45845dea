r"""Texts of problems, taken apart: numbers, formulas, figures and words, in spellings that can be compared."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache

from ..rewards.extraction import canonical_number

_BLOCK = (  # formulas of more than 4,000 characters are none; without bounds, "\[" ten thousand times takes for ever
    r"(?P<figure>\[asy\].{0,8000}?\[/asy\])"
    r"|\$\$(?P<display>.{0,4000}?)\$\$|\\\[(?P<bracket>.{0,4000}?)\\\]|\\\((?P<paren>.{0,4000}?)\\\)"
    r"|\\begin\{(?P<env>align|equation|eqnarray|gather|multline)(?P<star>\*?)\}(?P<body>.{0,4000}?)\\end\{(?P=env)(?P=star)\}"
)
_INLINE = r"(?<!\\)\$(?P<inline>(?:\\.|[^$\\])*)\$"
_MATH = re.compile(f"{_BLOCK}|{_INLINE}", re.DOTALL)
_MATH_BESIDE_MONEY = re.compile(_BLOCK, re.DOTALL)
_PROSE = re.compile(
    r"(?:\A|\s)(?:and|the|for|per|each|an|of|to|is|in|he|she|at|on|or|if|it|was|had|has|his|her|how|than|from|with|they|"
    r"what|more|bill|cost|less|fee|plus|[a-z]{5,}),?(?=\s|\Z)|[.?]\s+[A-Z][a-z]"
)
"""Words that no formula holds outside of `text`: not `xy` or `abc`, which are products."""

_DIGITS = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+")
_FRACTION_OF_DIGITS = re.compile(r"\\[dt]?frac\s*(?:(\d)\s*(\d)|\{?(\d+)\}?\s*\{?(\d+)\}?)")

_UNITS = "one|two|three|four|five|six|seven|eight|nine"
_TEENS = "ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen"
_TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
_SCALES = {"hundred": 100, "thousand": 1000, "million": 1_000_000}
_SCALE = "|".join(_SCALES)
_SMALL = {
    **{word: n for n, word in enumerate(f"{_UNITS}|{_TEENS}".split("|"), start=1)},
    **{word: 10 * n for n, word in enumerate(_TENS.split("|"), start=2)},
}
_WORDED = re.compile(
    rf"\b(?:(?:(?P<tens>{_TENS})(?:[- ](?P<unit>{_UNITS}))?|(?P<small>{_TEENS}|{_UNITS}))\b"
    rf"(?:[- ](?P<scale>{_SCALE})\b)?|(?P<alone>{_SCALE})\b)",
    re.IGNORECASE,
)
_DIGITS_AND_SCALE = re.compile(rf"(?<![\d.,])(\d{{1,9}}(?:\.\d{{1,9}})?)[- ]({_SCALE})\b", re.IGNORECASE)
_MEANINGS = {
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
    "0": "zero origin positive negative nonzero nonnegative",
    "12": "dozen",
    "50": "half",
    "0.5": "half",
    "1/2": "half",
    "25": "quarter",
    "100": "percent hundredth",
    "1000": "thousandth",
}
_SPELLINGS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:left|right|displaystyle|limits|big|Big|bigg|Bigg)(?![A-Za-z])", ""),
        (r"\\\{", "⟦"),
        (r"\\\}", "⟧"),
        (r"\\[,;:!> &]|\\q?quad(?![A-Za-z])|~|&|\\\\", " "),
        (r"\\[dt]frac(?![A-Za-z])", r"\\frac"),
        (r"\\frac\s*(\d)\s*(\d)", r"\1/\2"),
        (r"\\frac\s*\{([^{}]{1,12})\}\s*\{([^{}]{1,12})\}", r"\1/\2"),
        (r"\\(?:cdot|times)(?![A-Za-z])|[·×]", "*"),
        (r"\\div(?![A-Za-z])|÷|\bdivided by\b", "/"),
        (r"\\leq?(?![A-Za-z])|≤", "<="),
        (r"\\geq?(?![A-Za-z])|≥", ">="),
        (r"\\neq?(?![A-Za-z])|\\not\s*=|≠", "!="),
        (r"\\(?:l|c)?dots(?![A-Za-z])|…|\\dotsc|\\dotsb", "..."),
        (r"\{,\}", ","),
        (r"\\(?:text(?:bf|it|rm)?|mathrm|mbox|operatorname)\s*\{([^{}]*)\}", r'"\1"'),
        (r'\^\{?"(st|nd|rd|th)"\}?', r'"\1"'),
        (r"\\?\$|\\(?=%)", ""),
        (r"[−–]", "-"),
        (r"(\\[A-Za-z]+)[\s{}]+(?=[A-Za-z])", "\\1\0"),  # \sin x is no command \sinx
        (r"[{}\s]", ""),
    )
)
_EXAMPLE = re.compile(r"(?<!\S)For (?:example|instance)\b[^?]{0,600}?\.(?!\S)")
_LETTER = re.compile(r'"[^"]*"|\\[A-Za-z]+|[A-Za-z]')


def without_examples(text: str, other: str) -> str:
    """The text without its examples, where the other text has one too: it may be told with fewer numbers and formulas.

    >>> without_examples("Add 1. For example, 3 becomes 4. What becomes 7?", "One is added. For instance, 3 gives 4. …")
    'Add 1.   What becomes 7?'
    """
    return _EXAMPLE.sub(" ", text) if _EXAMPLE.search(other) else text


def numbers(text: str) -> set[str]:
    r"""Numbers in digits or as words, in their canonical spelling; the word `one`, by itself, is none.

    >>> sorted(numbers(r"$1,200 at 5.50% for \frac13 of twenty-one months; one of two hundred or 2.5 million"))
    ['1', '1200', '200', '21', '2500000', '3', '5.5']
    """
    text = text.replace("{,}", ",").replace("\\!", "")
    text = _FRACTION_OF_DIGITS.sub(lambda m: f" {m[1] or m[3]} / {m[2] or m[4]} ", text)
    text = _DIGITS_AND_SCALE.sub(lambda m: f"{Decimal(m[1]) * _SCALES[m[2].lower()]:f}", text)
    worded = {_value(match) for match in _WORDED.finditer(text) if match[0].lower() != "one"}
    return {canonical_number(found) or found for found in _DIGITS.findall(text)} | worded


def _value(match: re.Match[str]) -> str:
    parts = [_SMALL[match[name].lower()] for name in ("tens", "unit", "small") if match[name]]
    scale = match["scale"] or match["alone"]
    return str((sum(parts) or 1) * (_SCALES[scale.lower()] if scale else 1))


def loose_numbers(text: str) -> set[str]:
    """Numbers that words of the text may stand for, and need not: 2 for `twice`, 1 for `a`.

    >>> sorted(loose_numbers("Twice as many in a week"))
    ['1', '2', '7']
    """
    words = set(re.findall("[a-z]+", text.lower()))
    return {number for number, names in _MEANINGS.items() if not words.isdisjoint(names.split())}


@lru_cache(maxsize=64)
def math_spans(text: str) -> tuple[re.Match[str], ...]:
    r"""Formulas and figures as they stand in the text.

    Where a pair of dollars encloses prose, or one has no partner, dollars are taken for money.

    >>> math_spans("She earns $12 an hour and pays $5.")
    ()
    """
    inline = re.sub(r"\\(?:text|mbox|mathrm)\s*\{[^{}]*\}", "", _MATH_BESIDE_MONEY.sub("", text))
    odd = len(re.findall(r"(?<!\\)\$", inline)) % 2 == 1
    money = odd or any(_PROSE.search(match["inline"]) for match in re.finditer(_INLINE, inline, re.DOTALL))
    return tuple((_MATH_BESIDE_MONEY if money else _MATH).finditer(text))


def formulas(text: str) -> set[str]:
    r"""The formulas in math mode, cut at commas and semicolons outside of brackets, each piece `compact`.

    >>> sorted(formulas(r"If $f(x,y)=3,\ x>0$ costs \$5 and \[y = 2,\] …"))
    ['f(x,y)=3', 'x>0', 'y=2']
    """
    found = set()
    for match in math_spans(text):
        if match.lastgroup not in (None, "figure"):
            math = match[match.lastgroup].replace("{,}", "").replace("\\,", " ").replace("\\;", " ")
            found |= {compact(piece) for piece in re.split(r"[,;](?![^()\[\]]{0,200}[)\]])", math)}
    return found - {""}


def figures(text: str) -> list[str]:
    """Figures given as Asymptote code, spaces left out, sorted."""
    return sorted("".join(match["figure"].split()) for match in math_spans(text) if match.lastgroup == "figure")


def prose(text: str) -> str:
    """The text without its formulas and figures."""
    ends = [0, *(place for match in math_spans(text) for place in match.span()), len(text)]
    return " ".join(text[start:end] for start, end in zip(ends[::2], ends[1::2], strict=True))


@lru_cache(maxsize=8192)
def compact(math: str) -> str:
    r"""A formula in a spelling that does not depend on spaces, braces, dollars and synonyms; words in quotes.

    >>> compact(r"\dfrac{1}{2} \cdot x^{2} \leq 3"), compact("$1/2 × x^2 ≤ 3$")
    ('1/2*x^2<=3', '1/2*x^2<=3')
    """
    for pattern, replacement in _SPELLINGS:
        math = pattern.sub(replacement, math)
    return math.replace("\0", " ").strip(".,;:")


def holds(text: str, spelled: str) -> bool:
    r"""Whether a formula or a word, in its `compact` spelling, stands in a text and is no part of a longer one.

    >>> holds("How many are $6 \\cdot 7$?", "6*7"), holds("There are 426.", "42"), holds("Find it.", "n")
    (True, False, False)
    """
    if spelled.isalpha():
        return bool(re.search(rf"(?<![A-Za-z\\]){spelled}(?![A-Za-z])", text, re.IGNORECASE if len(spelled) > 1 else 0))
    return bool(re.search(rf"(?<![\d.]){re.escape(spelled)}(?!\.?\d)", compact(text)))


def variables(piece: str) -> set[str]:
    """The letters of a piece that are no part of a command or of words."""
    return {letter for letter in _LETTER.findall(piece) if len(letter) == 1}


def with_names(piece: str, names: dict[str, str]) -> str:
    r"""The piece with other letters for its variables.

    >>> with_names(r"\sin(ax)+x_1", {"x": "t"})
    '\\sin(at)+t_1'
    """
    return _LETTER.sub(lambda match: names.get(match[0], match[0]), piece)
