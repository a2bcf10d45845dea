r"""Texts of problems, taken apart: numbers, formulas, figures and words, in spellings that can be compared."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise

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
_WORD = re.compile(r"[A-Za-z]+(?:['’][a-z]+)?|\d+(?:\.\d+)?")

_UNITS = "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_ORDINALS = "fifth sixth seventh eighth ninth tenth"
CARDINALS: dict[str, str] = {
    **{word: str(n) for n, word in enumerate(f"{_UNITS} eighteen nineteen".split(), start=2)},
    **{word: str(10 * n) for n, word in enumerate(_TENS.split(), start=2)},
    **{"hundred": "100", "thousand": "1000", "million": "1000000"},
}
"""Words that name a number and nothing else."""

_MEANINGS = {
    "a an one single once first each every per another alone weekly daily": "1",
    "twice double doubled doubles second couple pair both square squared": "2",
    "half halves halved": "2 1 50 0.5 1/2",
    "thrice triple triples tripled cube cubed triangle": "3",
    "third thirds": "3 1",
    "quarter quarters": "4 1 25",
    "quadruple fourth fourths": "4",
    "week weeks": "7",
    "dozen": "12",
    "percent hundredth": "100",
    "thousandth": "1000",
    "zero origin positive negative nonzero nonnegative": "0",
    **{f"{word} {word}s": str(n) for n, word in enumerate(_ORDINALS.split(), start=5)},
}
LOOSE_NUMBERS = {word: numbers.split() for words, numbers in _MEANINGS.items() for word in words.split()}
"""Words that may stand for a number of the other text, and need not: `half` for 1/2, `a` for 1."""

_SPELLINGS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:left|right|displaystyle|limits|big|Big|bigg|Bigg)(?![A-Za-z])", ""),
        (r"\\\{", "⟦"),
        (r"\\\}", "⟧"),
        (r"\\&", "＆"),
        (r"\\[,;:!> ]|\\q?quad(?![A-Za-z])|~|&|\\\\", " "),
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
        (r"\\%", "%"),
        (r"\\?\$", ""),
        (r"[−–]", "-"),
        (r"(\\[A-Za-z]+)[\s{}]+(?=[A-Za-z])", "\\1\0"),  # \sin x is no command \sinx
        (r"[{}\s]", ""),
    )
)


_EXAMPLE = re.compile(r"(?<!\S)For (?:example|instance)\b[^?]{0,600}?\.(?!\S)")


def without_examples(text: str, other: str) -> str:
    """The text without its examples, where the other text has one too: it may be told with fewer numbers and formulas.

    >>> without_examples("Add 1. For example, 3 becomes 4. What becomes 7?", "One is added. For instance, 3 gives 4. …")
    'Add 1.   What becomes 7?'
    """
    return _EXAMPLE.sub(" ", text) if _EXAMPLE.search(other) else text


def numerals(text: str) -> set[str]:
    r"""Numbers written in digits, in their canonical spelling.

    >>> sorted(numerals(r"$1,200 at 5.50% for \frac13 of 12 months, 5th floor"))
    ['1', '12', '1200', '3', '5', '5.5']
    """
    text = _FRACTION_OF_DIGITS.sub(lambda m: f" {m[1] or m[3]} / {m[2] or m[4]} ", text.replace("{,}", ","))
    return {canonical_number(found) or found for found in _DIGITS.findall(text.replace("\\!", ""))}


def number_words(text: str) -> set[str]:
    """Numbers from two on that are written as words; compounds as their parts.

    >>> sorted(number_words("Twenty-one of two hundred, and one more"))
    ['100', '2', '20']
    """
    return {CARDINALS[word] for word in words(text) if word in CARDINALS}


def loose_numbers(text: str) -> set[str]:
    """Numbers that words of the text may stand for: 2 for `twice`, 21 for `twenty-one`, 200 for `two hundred`.

    >>> sorted(loose_numbers("twice as many, twenty-five, two hundred"))
    ['100', '2', '20', '200', '25', '5']
    """
    found = {number for word in words(text) for number in LOOSE_NUMBERS.get(word, ())} | number_words(text)
    values = [int(CARDINALS.get(word, word == "one")) for word in words(text)]  # 0 for other words
    for first, second in pairwise(values):
        if second >= 100 > first > 0:
            found.add(str(first * second))
        elif first >= 20 and 0 < second < 10:
            found.add(str(first + second))
    return found


def words(text: str) -> list[str]:
    """Words and numbers in lower case, punctuation left out."""
    return [word.lower().replace("’", "'") for word in _WORD.findall(text)]


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


def formulas(text: str) -> list[str]:
    r"""What stands in math mode, as it is written; figures left out.

    >>> formulas(r"If $x=1$ costs \$5 and \[y=2,\] …")
    ['x=1', 'y=2,']
    """
    return [match[match.lastgroup] for match in math_spans(text) if match.lastgroup not in (None, "figure")]


def figures(text: str) -> list[str]:
    """Figures given as Asymptote code, spaces left out."""
    return ["".join(match["figure"].split()) for match in math_spans(text) if match.lastgroup == "figure"]


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


def pieces(math: str) -> list[str]:
    r"""A formula cut at the commas and semicolons outside of brackets, each piece `compact`.

    >>> pieces(r"f(x,y)=3,\ x>0")
    ['f(x,y)=3', 'x>0']
    """
    found, depth, start = [], 0, 0
    math = math.replace("{,}", "").replace("\\,", " ").replace("\\;", " ")
    for position, character in enumerate(math):
        depth += (character in "([{") - (character in ")]}")
        if character in ",;" and depth <= 0:
            found.append(math[start:position])
            start = position + 1
    return [piece for piece in map(compact, [*found, math[start:]]) if piece]


_COMMAND = re.compile(r'"[^"]*"|\\[A-Za-z]+|[A-Za-z]')


def shape(piece: str) -> str:
    r"""A piece with every variable replaced by `v`; commands and function names stay.

    >>> shape(r"\sin(ax)+b_1"), shape(r"\sin(pq)+r_1")
    ('\\sin(vv)+v_1', '\\sin(vv)+v_1')
    """
    return _COMMAND.sub(lambda match: match[0] if len(match[0]) > 1 else "v", piece)


def variables(piece: str) -> list[str]:
    """The letters of a piece that are no part of a command, in order."""
    return [letter for letter in _COMMAND.findall(piece) if len(letter) == 1]
