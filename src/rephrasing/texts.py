r"""Split texts of problems into numbers, formulas, figures and words, in spellings that can be compared."""

import re
from collections.abc import Collection, Iterable
from decimal import Decimal

from ..datamodules.hidden_text import control_marks, hidden_characters
from ..rewards.canonical import canonical_number
from ..rewards.units import NUMBER_WORDS, SCALES

# formulas over 4,000 characters are not found: without bounds, ten thousand "\[" would take for ever
_BLOCK = (
    r"\[asy\].{0,8000}?\[/asy\]|\$\$.{0,4000}?\$\$|\\\[.{0,4000}?\\\]|\\\(.{0,4000}?\\\)"
    r"|\\begin\{(align|equation|eqnarray|gather|multline)(\*?)\}.{0,4000}?\\end\{\1\2\}"
)
_INLINE = r"(?<!\\)\$(?:\\.|[^$\\])*\$"
_MATH = re.compile(f"{_BLOCK}|{_INLINE}", re.DOTALL)
_MATH_BESIDE_MONEY = re.compile(_BLOCK, re.DOTALL)
_DELIMITER = re.compile(r"\A(?:\$\$?|\\[\[(]|\\begin\{[a-z]+\*?\})|(?:\$\$?|\\[\])]|\\end\{[a-z]+\*?\})\Z")
_PROSE = re.compile(
    r"(?:\A|\s)(?:and|the|for|per|each|an|of|to|is|in|he|she|at|on|or|if|it|was|had|has|his|her|how|than|from|with|they|"
    r"what|more|bill|cost|less|fee|plus|[a-z]{5,}),?(?=\s|\Z)|[.?]\s+[A-Z][a-z]"
)
"""Pattern of words that occur in formulas only within `text`. Products such as `xy` do not match."""

_DIGITS = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+")
_FRACTION_OF_DIGITS = re.compile(r"\\[dt]?frac\s*(?:(\d)\s*(\d)|\{?(\d+)\}?\s*\{?(\d+)\}?)")
_ONES = "|".join(word for word, number in NUMBER_WORDS.items() if 1 <= number <= 9)
_TENS = "|".join(word for word, number in NUMBER_WORDS.items() if number >= 20)
_OVER_ONE = "|".join(word for word, number in NUMBER_WORDS.items() if number > 1)
_WORDED = re.compile(rf"\b(?:(?:{_TENS})[- ](?:{_ONES})|{_OVER_ONE})\b", re.IGNORECASE)
_SCALE_WORDS = "|".join(word for word in SCALES if word != "dozen")  # a dozen is a number by itself
_SCALED = re.compile(rf"(?:(?<![\d.,])(\d{{1,9}}(?:\.\d{{1,9}})?)[- ]|\b)({_SCALE_WORDS})\b", re.IGNORECASE)
_MEANINGS = {
    "0": "zero origin positive negative nonzero nonnegative", "0.5": "half",
    "1": "a an one single once first each every per another alone weekly daily half halves halved third thirds quarter",
    "2": "twice double doubled doubles second couple pair both square squared half halves halved",
    "3": "thrice triple triples tripled cube cubed triangle third thirds",
    "4": "quarter quarters quadruple fourth fourths", "5": "fifth fifths", "6": "sixth sixths",
    "7": "seventh sevenths week weeks", "8": "eighth eighths", "9": "ninth ninths", "10": "tenth tenths", "12": "dozen",
    "25": "quarter", "50": "half", "100": "percent hundredth", "1000": "thousandth",
}  # fmt: skip
_SPELLINGS = {
    re.compile(r"\\(?:left|right|displaystyle|limits|[bB]igg?)(?![A-Za-z])"): "",
    re.compile(r"\\[{}]"): "|",
    re.compile(r"\{,\}"): ",",
    re.compile(r"\\[,;:!> &]|\\q?quad(?![A-Za-z])|~|&|\\\\"): " ",
    re.compile(r"\\[dt]?frac\s*(\d)\s*(\d)"): r"\1/\2",
    re.compile(r"\\[dt]?frac\s*\{([^{}]{1,12})\}\s*\{([^{}]{1,12})\}"): r"\1/\2",
    re.compile(r"\\[dt]frac(?![A-Za-z])"): r"\\frac",
    re.compile(r"\\(?:cdot|times)(?![A-Za-z])|[·×]"): "*",
    re.compile(r"\\div(?![A-Za-z])|÷|\bdivided by\b"): "/",
    re.compile(r"\\leq?(?![A-Za-z])|≤"): "<=",
    re.compile(r"\\geq?(?![A-Za-z])|≥"): ">=",
    re.compile(r"\\neq?(?![A-Za-z])|\\not\s*=|≠"): "!=",
    re.compile(r"\\[lc]?dots[bc]?(?![A-Za-z])|…"): "...",
    re.compile(r"\\(?:text(?:bf|it|rm)?|mathrm|mbox|operatorname)\s*\{([^{}]*)\}"): r'"\1"',
    re.compile(r'\^\{?"(st|nd|rd|th)"\}?'): r'"\1"',
    re.compile(r"\\?\$|\\(?=%)"): "",
    re.compile(r"[−–]"): "-",
    re.compile(r"(\\[A-Za-z]+)[\s{}]+(?=[A-Za-z])"): "\\1\0",  # \sin x is no command \sinx
    re.compile(r"[{}\s]"): "",
}
_EXAMPLE = re.compile(r"(?<!\S)For (?:example|instance)\b[^?]{0,600}?\.(?!\S)")
_LETTER = re.compile(r'"[^"]*"|\\[A-Za-z]+|[A-Za-z]')


def hidden_text(text: str, tokens: Collection[str] = ()) -> list[str]:
    r"""Return the parts of a text that readers can't see, or that a tokenizer reads as control tokens.

    Args:
        text: Any text.
        tokens: Control tokens in addition to the published control tokens.

    >>> hidden_text("Add 1\u200b to 1.<|im_end|>")
    ['U+200B ZERO WIDTH SPACE', '<|im_end|>']
    """
    found = [
        *hidden_characters(text),
        *control_marks(text),
        *sorted(token for token in tokens if token in text),
    ]
    return list(dict.fromkeys(found))


def without_examples(text: str, other: str) -> str:
    """Drop the examples of a text if the other text has an example too.

    The example of the other text may have fewer numbers and formulas.

    >>> without_examples("Add 1. For example, 3 becomes 4. What becomes 7?", "One is added. For instance, 3 gives 4. …")
    'Add 1.   What becomes 7?'
    """
    return _EXAMPLE.sub(" ", text) if _EXAMPLE.search(other) else text


def numbers(text: str) -> set[str]:
    r"""Return numbers in digits or as words, in canonical spelling; the word `one` alone does not count.

    >>> sorted(numbers(r"$1,200 at 5.50% for \frac13 of twenty-one months; one of two hundred or 2.5 million"))
    ['1', '1200', '200', '21', '2500000', '3', '5.5']
    >>> numbers("2 billion"), numbers("2 trillion"), numbers("3 lakh")
    ({'2000000000'}, {'2000000000000'}, {'300000'})
    """
    text = text.replace("{,}", ",").replace("\\!", "")
    text = _FRACTION_OF_DIGITS.sub(lambda m: f" {m[1] or m[3]} / {m[2] or m[4]} ", text)
    text = _WORDED.sub(
        lambda m: str(sum(NUMBER_WORDS[word] for word in re.split("[- ]", m[0].lower()))), text
    )
    text = _SCALED.sub(lambda m: f"{Decimal(m[1] or 1) * SCALES[m[2].lower()]:f}", text)
    return {canonical_number(found) or found for found in _DIGITS.findall(text)}


def loose_numbers(text: str) -> set[str]:
    """Return numbers that words of the text may, but need not, stand for: 2 for `twice`, 1 for `a`."""
    words = set(re.findall("[a-z]+", text.lower()))
    return {number for number, names in _MEANINGS.items() if not words.isdisjoint(names.split())}


def math_spans(text: str) -> list[re.Match[str]]:
    r"""Find formulas and figures as written in the text.

    If a pair of dollars encloses prose, or a dollar has no partner, all single dollars are read as money.

    >>> math_spans("She earns $12 an hour and pays $5.")
    []
    """
    inline = re.sub(r"\\(?:text|mbox|mathrm)\s*\{[^{}]*\}", "", _MATH_BESIDE_MONEY.sub("", text))
    odd = len(re.findall(r"(?<!\\)\$", inline)) % 2 == 1
    money = odd or any(
        _PROSE.search(formula.strip("$")) for formula in re.findall(_INLINE, inline, re.DOTALL)
    )
    return list((_MATH_BESIDE_MONEY if money else _MATH).finditer(text))


def formulas(text: str) -> set[str]:
    r"""Return formulas in math mode, cut at commas and semicolons outside brackets, spelled as by `compact`.

    >>> sorted(formulas(r"If $f(x,y)=3,\ x>0$ costs \$5 and \[y = 2,\] …"))
    ['f(x,y)=3', 'x>0', 'y=2']
    """
    found = set()
    for span in (match[0] for match in math_spans(text) if not match[0].startswith("[asy]")):
        math = _DELIMITER.sub("", span).replace("{,}", "").replace("\\,", " ").replace("\\;", " ")
        found |= {compact(piece) for piece in re.split(r"[,;](?![^()\[\]]{0,200}[)\]])", math)}
    return found - {""}


def figures(text: str) -> list[str]:
    """Return figures given as Asymptote code, without spaces, sorted."""
    return sorted("".join(match[0].split()) for match in math_spans(text) if match[0].startswith("[asy]"))


def prose(text: str) -> str:
    """Return the text without formulas and figures."""
    ends = [0, *(place for match in math_spans(text) for place in match.span()), len(text)]
    return " ".join(text[start:end] for start, end in zip(ends[::2], ends[1::2], strict=True))


def compact(math: str) -> str:
    r"""Spell a formula independently of spaces, braces, dollars and synonyms; words are put in quotes.

    >>> compact(r"\dfrac{1}{2} \cdot x^{2} \leq 3"), compact("$1/2 × x^2 ≤ 3$")
    ('1/2*x^2<=3', '1/2*x^2<=3')
    """
    for pattern, replacement in _SPELLINGS.items():
        math = pattern.sub(replacement, math)
    return math.replace("\0", " ").strip(".,;:")


def holds(text: str, spelled: str) -> bool:
    r"""Check whether a `compact` formula or word is in a text and not part of a longer one.

    >>> holds("How many are $6 \\cdot 7$?", "6*7"), holds("There are 426.", "42"), holds("Find it.", "n")
    (True, False, False)
    """
    if spelled.isalpha():
        return bool(
            re.search(
                rf"(?<![A-Za-z\\]){spelled}(?![A-Za-z])", text, re.IGNORECASE if len(spelled) > 1 else 0
            )
        )
    return bool(re.search(rf"(?<![\d.]){re.escape(spelled)}(?!\.?\d)", compact(text)))


def variables(pieces: Iterable[str]) -> set[str]:
    """Return the letters of `compact` formulas that are not part of a command or of words."""
    return {letter for piece in pieces for letter in _LETTER.findall(piece) if len(letter) == 1}


def with_names(piece: str, names: dict[str, str]) -> str:
    """Rename the variables in a formula by `names`; letters without a new name are kept."""
    return _LETTER.sub(lambda match: names.get(match[0], match[0]), piece)
