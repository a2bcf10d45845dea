"""Verifiers that compare final answers as written: after a marker, or in a plain response in a given form."""

import re
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from math import prod

from ..types import Score, Verifier
from .canonical import Reference, canonical_number, is_container, references_of
from .extraction import after_marker, last_boxes, marked_or_stated
from .response import split_response, without_answer_marks
from .units import SCALES

LONGEST = 8_000
"""Number of characters to read at the end of a response, so that a response takes only milliseconds."""
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d{1,60}(?:\.\d{1,60})?|\.\d{1,60})(?:e[-+]?\d{1,3})?(?:\s?/\s?\d{1,60})?(?!\d)",
    re.A | re.I,
)
_THOUSANDS = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3}){1,20}(?![\d,])", re.ASCII)
_SPACED = re.compile(r"(?<![\w.,])\d{1,3}(?:\s\d{3}){1,20}(?!\s?[\d,])", re.ASCII)
_DENIED = re.compile(
    rf"\b(?:not|never)\s(?:equal\sto\s)?[$€£¥\s]{{0,4}}{_NUMBER.pattern}", re.ASCII | re.IGNORECASE
)
_UNIT = r"(?:[\s$€£¥%*_]{0,4}\b(?!(?:or|and|to|through|is|are|of)\b)[^\W\d_]{1,20}){0,2}[\s$€£¥%*_]{0,4}"
_ANOTHER = re.compile(
    rf"{_UNIT}(?:(?:,\s?)?\b(?:and/or|or|and|to|through)\s(?:(?:maybe|perhaps|possibly|even|about|else)\s){{0,2}}"
    rf"|[-–—]\s?|[,;]\s?)[\s$€£¥*_]{{0,4}}{_NUMBER.pattern}{_UNIT}(?:[.,;:!?)]|\bor\b|\band\b|\Z)",
    re.ASCII | re.IGNORECASE,
)
"""Pattern of the text after a number if there are several numbers: alternatives, a range or a list."""
_VULGAR = re.compile("[¼½¾⅐-⅞]")
_MIXED = re.compile(r"(?<![\w.,/])(\d{1,20})\s(\d{1,20})/(\d{1,20})(?![\w/]|[.,]\d)", re.ASCII)
_MIXED_LATEX = re.compile(r"(?<=\d)\s?\\[dt]?frac\{(\d{1,20})\}\{(\d{1,20})\}", re.ASCII)
_POWER = re.compile(
    r"(?<![\w.])(?:(\d{1,60}(?:\.\d{1,60})?)\s?(?:\\times|\\cdot|[×x*·])\s?)?(\d{1,6})\s?\^\s?(\{)?([-+]?\d{1,2})(?(3)\})(?!\d)",
    re.ASCII,
)
"""A power, perhaps with a factor in front: `4 \\times 10^{3}`."""
_NEGATIVE = re.compile(
    r"(?<![\d)]\s)\b(?:negative|minus)\s(?=\d)|(?<![\w)])–(?=\d)", re.ASCII | re.IGNORECASE
)
_SCALED = re.compile(
    rf"(?<![\w.])(\d{{1,60}}(?:\.\d{{1,60}})?)((?:\s(?:{'|'.join(SCALES)})\b)+)", re.ASCII | re.IGNORECASE
)
_TOO_LARGE = Fraction(10**300)
"""Number with more digits than an answer may have. Python prints at most 4,300 digits."""
_HOURS = r"hours?|hrs?|minutes?|mins?|seconds?|feet|foot|ft|inches|pounds?|lbs?|ounces?|years?|months?|weeks?|days?"
_COMPOUND = re.compile(
    rf"\s{{1,3}}(?:{_HOURS})(?:,?\sand|,)?\s{{1,3}}\d{{1,60}}\s{{1,3}}(?:{_HOURS})\b",
    re.ASCII | re.IGNORECASE,
)
"""Pattern of the text after a number if amounts in other units follow: `3 hours 20 minutes`."""
_FRACTION = re.compile(r"(?<!\d)\\[dt]?frac\{(\d{1,60})\}\{(\d{1,60})\}", re.ASCII)
_WORDS = re.compile(r"\\(?:text|mbox|mathrm)\s?\{([^{}]{0,1000})\}")
_ASIDE = re.compile(r"\([^()]{0,1000}\)")
_COMPARISON = re.compile(
    r"(?:,\s?|\s)which\b(?!\s(?:is|equals|makes|gives)\s\W{0,3}[\d.,]{1,60}(?![\d.,]|\s?\\?%|\s(?:percent|times|more|less|of)\b))"
    r"|,?\s(?:because|since)\b",
    re.IGNORECASE,
)
_LEAD = re.compile(
    r"[\s$€£¥*_~≈\"'`\\({\[]{0,8}"
    r"(?:(?:either|between|from|about|approximately|around|roughly|exactly|just|only|simply|therefore|thus|equal to)\s)"
    r"{0,2}"
    r"(?:\\?[A-Za-z]\w{0,12}\s?=)?[\s$€£¥*_~≈\"'`\\({\[]{0,8}",
    re.IGNORECASE,
)
_CONTINUED = re.compile(r"\s?(?:[-+*/×·÷^=]|\\(?:times|cdot|div)|(?:is|equals|times|plus|minus)\b)")
_WORD = r"(?<!\w)(?:-(?=\d))?\w+(?:['’-]\w+)*"
_NOT_CELLS = str.maketrans(dict.fromkeys("[,|<>∧∨'\"`$", " "))


def _numbers(text: str) -> list[str]:
    """Return the numbers of a text in spellings that `Fraction` reads, without divisions by zero."""
    found = []
    for match in _NUMBER.findall(_FRACTION.sub(r"\1/\2", text)):
        number, over, divisor = match.replace(" ", "").partition("/")
        number = canonical_number(format(Decimal(number), "f")) or number
        if not over:
            found.append(number)
        elif divisor.strip("0"):
            found.append(str(Fraction(number) / int(divisor)))
    return found


def _plain(text: str) -> str:
    """Write each number only in digits, and drop denied numbers ("not 42").

    Separators of thousands are dropped; mixed numbers, powers and scales (`4 million`) are multiplied out.
    """
    text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    text = _NEGATIVE.sub("-", text)
    text = _MIXED.sub(_mixed, _MIXED_LATEX.sub(r" \1/\2", text))
    text = _POWER.sub(_raised, text)
    text = _SCALED.sub(_scaled, text)
    return _DENIED.sub("", text)


def _mixed(match: re.Match[str]) -> str:
    whole, above, below = map(int, match.groups())
    return f"{whole * below + above}/{below}" if 0 < above < below else match[0]


def _raised(match: re.Match[str]) -> str:
    base, exponent = int(match[2]), int(match[4])
    return str(Fraction(match[1] or 1) * Fraction(base) ** exponent) if base else match[0]


def _scaled(match: re.Match[str]) -> str:
    value = Fraction(match[1]) * prod(SCALES[scale.lower()] for scale in match[2].split())
    return str(min(value, _TOO_LARGE))


def _number(text: str) -> str | None:
    """Return the last number of a text outside derivations in parentheses and comparisons that follow."""
    text = _plain(text)
    said = _ASIDE.sub(lambda aside: "" if len(_numbers(aside[0])) > 1 else aside[0], text)
    comparison = _COMPARISON.search(said)
    for part in (said[: comparison.start()] if comparison else said, said, text):
        found = _numbers(part)
        if found:
            return found[-1]
    return None


def _beginning(text: str) -> tuple[str, re.Match[str] | None]:
    """Return a statement with plain numbers, and the number at its beginning if there is one."""
    text = _WORDS.sub(r" \1 ", text)
    said = _FRACTION.sub(r"\1/\2", _SPACED.sub(lambda match: "".join(match[0].split()), _plain(text)))
    lead = _LEAD.match(said)
    return said, _NUMBER.match(said, lead.end() if lead else 0)


def _names_several(text: str) -> bool:
    """Check whether a statement begins with alternatives, a range or a list of numbers: `42 or 43`."""
    said, first = _beginning(text)
    return first is not None and _lists_more(said, first)


def _lists_more(said: str, first: re.Match[str]) -> bool:
    """Check whether alternatives, a range or a list of numbers follow a statement's first number."""
    clause = _ASIDE.sub("", said[first.end() :])
    return "=" not in clause and (_ANOTHER.match(clause) or _COMPOUND.match(clause)) is not None


def _stated_number(text: str) -> str | None:
    """Return the number that a statement begins with, or that its equation ends with.

    If there is none, return `_number`. If there are several numbers (`_names_several`), return None.
    """
    said, first = _beginning(text)
    if first is None:
        return _number(text)
    if _lists_more(said, first):
        return None
    clause = _ASIDE.sub("", said[first.start() :]).partition(", ")[0]
    left, *_, right = clause.split("=") if "=" in clause else (clause, "")
    result = _numbers(right)
    value = _numbers(left)
    if len(result) > 1 and len(value) == 1:  # 42 = 6 * 7
        return value[0]
    if result:
        return result[0]
    if _CONTINUED.match(said, first.end()):
        return _number(text)
    return next(iter(_numbers(first[0])), None)


def _vote(number: str) -> str:
    """Return one spelling for equal numbers: a decimal if it ends, otherwise a fraction in lowest terms.

    >>> _vote("1/2"), _vote("0.50"), _vote("2/6")
    ('0.5', '0.5', '1/3')
    """
    value = Fraction(number)
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    if rest > 1:
        return str(value)
    digits = value.denominator.bit_length()  # no fewer than the decimals of the number
    scaled = Decimal(f"{value.numerator * 10**digits // value.denominator}E-{digits}")
    return canonical_number(format(scaled, "f")) or number


def _sequence(text: str, order: Callable[[list[str]], list[str]]) -> str | None:
    lists = re.findall(r"\[([^\[\]]*)\]", text)
    found = order(_numbers(lists[-1] if lists else re.split("[=:]", text)[-1]))
    return " ".join(found) if found or (lists and not lists[-1].strip()) else None


def _matches(text: str, pattern: str, *, every: bool) -> str | None:
    """Return the last match of `pattern` after the last `=`, or all matches if `every`, without decoration.

    If `pattern` has groups, the groups are returned instead of the match.
    """
    bare = []
    for match in re.finditer(pattern, text.rpartition("=")[2].casefold()):
        items = "/".join(match.groups("") or (match[0],)).split(",")
        bare.append([" ".join(item.split()).strip(" .`'\"*$[]()+") for item in items])
    if every:
        kept = sorted({", ".join(sorted(items)) for items in bare})
    else:
        kept = [", ".join(items) for items in bare[-1:]]
    return "; ".join(kept) or None


def _grid(text: str) -> str | None:
    blocks: list[list[str]] = [[]]
    for line in re.split(r"[\n\]]", text):
        cells = line.translate(_NOT_CELLS).split()
        if any(len(cell) > 1 and re.search(r"[^\W\d_]", cell) for cell in cells):
            blocks.append([])  # a line with words separates grids
        elif cells:
            blocks[-1].append(" ".join(canonical_number(cell) or cell for cell in cells))
    return next(("\n".join(block) for block in reversed(blocks) if block), None)


def _normalized(text: str) -> str:
    text = _VULGAR.sub(r" \g<0>", text)  # `3½` is `3 1/2`
    text = unicodedata.normalize("NFKC", text).replace("\N{FRACTION SLASH}", "/")
    return text.replace("\N{MINUS SIGN}", "-")


class PlainAnswerReward(Verifier):
    r"""Verifier of the final answer, read in a given form, against reference answers.

    Only the answer of the response is read, not its thoughts (`split_response`). If the answer has a box,
    only the last box is read; the forms of several values also read the boxes beside it. Otherwise the first
    of these texts that has the form is read: what follows `####`, "answer is" or "answer:"
    (`marked_or_stated`); the last line; the lines before the last.
    `Score.answer` is None if no text has the form. Case, quotes and other decoration never count. Nothing is
    evaluated. An unknown form is a ValueError.

    | form | what is read, and when it is correct |
    |---|---|
    | `number` | the number: equal in value; `1,000.0`, `1e3`, `1 thousand` and `2000/2` are `1000` |
    | `numbers` | all numbers of the last `[…]`, or after the last `=` or `:`, in order |
    | `multiset` | the same numbers, in any order |
    | `word` | the last match of `pattern`, by default a word |
    | `text` | the line |
    | `set` | all matches of `pattern`, in any order |
    | `grid` | the last block of rows without words, also as `[[…], […]]`: the same cells |

    In a box, and after `####` or "answer is", the number at the beginning counts, perhaps after `x =`,
    `about` or a currency: 42 of `42 apples (3 bags of 14)`. If an equation begins there, the number at its
    end counts: 7 of `3 + 4 = 7`. In all other cases, and in lines, the last number counts, except numbers of
    a derivation in parentheses or of a comparison: 42 of `Tom has 42 apples, which is 50% more than 28`. A
    statement of several numbers (`42 or 43`, `between 42 and 43`, `42, 43`) names no number, and a denied
    number (`not 42`) does not count.

    `Score.answer` spells equal numbers alike, so that they vote together: `0.5` for `1/2` and `.50`.

    Args:
        form: One of the forms in the table.
        digits: Number of significant digits to which numbers must agree, but not beyond the decimals of the
            reference. If the reference is a whole number of at most `digits` digits, the numbers must be
            equal. None always requires equal numbers.
        pattern: Regular expression for `word` and `set`; if it has groups, only the groups are read.

    >>> PlainAnswerReward("number")("3 dozen are 36.", "36")
    Score(correct=True, answer='36', failure=None)
    """

    def __init__(self, form: str = "number", digits: int | None = None, pattern: str = _WORD) -> None:
        readers: dict[str, Callable[[str], str | None]] = {
            "number": _number, "numbers": partial(_sequence, order=list), "grid": _grid,
            "multiset": partial(_sequence, order=partial(sorted, key=Fraction)),
            "set": partial(_matches, pattern=pattern, every=True),
            "word": partial(_matches, pattern=pattern, every=False),
            "text": partial(_matches, pattern=r"\S.*", every=False),
        }  # fmt: skip
        if form not in readers:
            raise ValueError(f"Expected `form` to be one of {', '.join(readers)}, but got {form!r}.")
        self.form = form
        self.digits = digits
        self._reader = readers[form]

    def __call__(self, response: str, reference: Reference) -> Score:
        """Score one response against its reference answers."""
        answer = self._final(response)
        correct = any(self._same(answer, self._read(text)) for text in references_of(reference))
        if answer is not None and self.form in ("number", "numbers", "multiset"):
            answer = " ".join(map(_vote, answer.split()))
        return Score(correct, answer)

    def check_reference(self, reference: Reference) -> None:
        """Check that each reference has the form and, for `number`, is a single number.

        Raises:
            ValueError: if a reference lacks the form, or has several numbers, such as `12:30` or `4 or 5`.
        """
        for text in references_of(reference):
            found = self._read(text)
            if found is None:
                raise ValueError(
                    f"Expected a reference answer of the form `{self.form}`, but got {text[:80]!r}."
                )
            if self.form == "number" and (is_container(text) or self._read(text, stated=True) != found):
                raise ValueError(
                    "Expected a reference answer of the form `number`, which is one number, but got "
                    f"{text[:80]!r}. Write the number alone, without separators; several correct numbers are "
                    "a list of answers."
                )

    def _read(self, text: str, *, stated: bool = False) -> str | None:
        reader = _stated_number if stated and self.form == "number" else self._reader
        return reader(_normalized(text))

    def _final(self, response: str) -> str | None:
        answer = without_answer_marks(split_response(response).answer)[-LONGEST:]
        boxed = last_boxes(answer)
        if boxed:
            several = self.form in ("numbers", "multiset", "set")
            return self._read(", ".join(boxed) if several else boxed[-1], stated=True)
        if self.form == "grid":
            return self._read(answer)
        statement = marked_or_stated(answer, reasons=True) or ""
        said = self._read(statement, stated=True)
        if said is not None:
            return said
        if self.form == "number" and _names_several(_normalized(statement)):
            return None
        read = map(self._read, reversed(answer.splitlines()))
        return next((found for found in read if found is not None), None)

    def _same(self, answer: str | None, reference: str | None) -> bool:
        if answer is None or reference is None or self.form not in ("number", "numbers", "multiset"):
            return answer is not None and answer == reference
        found = answer.split()
        right = reference.split()
        return len(found) == len(right) and all(map(self._close, found, right))

    def _close(self, number: str, reference: str) -> bool:
        """Return whether two numbers differ by at most half a unit of the last digit that counts."""
        decimals = len(reference.partition(".")[2])
        half = Fraction(0)
        if self.digits:
            last = max(-decimals, Decimal(reference.partition("/")[0]).adjusted() - self.digits + 1)
            if decimals or last > 0:
                half = Fraction(10) ** last / 2
        return abs(Fraction(number) - Fraction(reference)) <= half


class FinalAnswerReward(Verifier):
    """Verifier of the first line of text after the last `marker`, as in GSM8K (`#### 72`).

    Plain numbers are compared with the references by value (see `canonical_number`), other texts letter by
    letter: `27 apples` is not `27`. Fractions and formulas are for `MathReward`. Thoughts (`split_response`)
    are not read.

    >>> reward = FinalAnswerReward()
    >>> reward("12 + 15 = 27 #### 27", "27"), reward("I do not know", "27")
    (Score(correct=True, answer='27', failure=None),
     Score(correct=False, answer=None, failure=None))
    """

    def __init__(self, marker: str = "####") -> None:
        if not marker:
            raise ValueError("Expected a non-empty `marker`, but got ''.")
        self.marker = marker

    def check_reference(self, reference: Reference) -> None:
        """Check that each reference answer is a final answer.

        Raises:
            ValueError: if an answer is not a single line or contains the marker, as worked solutions do, or
                if it is a container (`is_container`).
        """
        for text in references_of(reference):
            if is_container(text):
                raise ValueError(
                    f"Expected a final answer as text, but got the container {text[:80]!r}. Write a string, "
                    "or a list of strings for several correct answers."
                )
            if self.marker in text or len(text.strip().splitlines()) != 1:
                raise ValueError(
                    f"Expected a final answer on one line, without {self.marker!r}, but got {text[-40:]!r}. "
                    "Where the answers are worked solutions, set the source's worked=true."
                )

    def __call__(self, response: str, reference: Reference) -> Score:
        """Score one response against its reference answers."""
        texts = [after_marker(split_response(response).answer, self.marker), *references_of(reference)]
        answer, *right = (text and (canonical_number(text) or text.strip()) for text in texts)
        return Score(answer in right, answer)
