"""Final answers compared as they are written: behind a marker, or in a plain response, in the form of a task."""

import re
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial

from ..types import Score, Verifier
from .canonical import Reference, canonical_number, references_of
from .extraction import after_marker, last_boxes, marked_or_stated
from .response import split_response, without_answer_marks

LONGEST = 8_000
"""Characters at the end of a response that are read, so that no response costs more than milliseconds."""
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d{1,60}(?:\.\d{1,60})?|\.\d{1,60})(?:e[-+]?\d{1,3})?(?:\s?/\s?\d{1,60})?(?!\d)", re.A | re.I
)
_THOUSANDS = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3}){1,20}(?![\d,])", re.ASCII)
_FRACTION = re.compile(r"(?<!\d)\\[dt]?frac\{(\d{1,60})\}\{(\d{1,60})\}", re.ASCII)
_ASIDE = re.compile(r"\([^()]{0,1000}\)")
_COMPARISON = re.compile(
    r"(?:,\s?|\s)which\b(?!\s(?:is|equals|makes|gives)\s\W{0,3}[\d.,]{1,60}(?![\d.,]|\s?\\?%|\s(?:percent|times|more|less|of)\b))"
    r"|,?\s(?:because|since)\b",
    re.IGNORECASE,
)
_LEAD = re.compile(
    r"[\s$€£¥*_~≈\"'`\\({\[]{0,8}"
    r"(?:(?:about|approximately|around|roughly|exactly|just|only|simply|therefore|thus|equal to)\s){0,2}"
    r"(?:\\?[A-Za-z]\w{0,12}\s?=)?[\s$€£¥*_~≈\"'`\\({\[]{0,8}",
    re.IGNORECASE,
)
_CONTINUED = re.compile(r"\s?(?:[-+*/×·÷^=]|\\(?:times|cdot|div)|(?:is|equals|times|plus|minus|and|or|to)\b)")
_WORD = r"(?<!\w)(?:-(?=\d))?\w+(?:['’-]\w+)*"
_NOT_CELLS = str.maketrans(dict.fromkeys("[,|<>∧∨'\"`$", " "))


def _numbers(text: str) -> list[str]:
    """Spellings that `Fraction` reads."""
    found = []
    for match in _NUMBER.findall(_FRACTION.sub(r"\1/\2", text)):
        number, _, divisor = match.replace(" ", "").partition("/")
        number = canonical_number(format(Decimal(number), "f")) or number
        found.append(str(Fraction(number) / int(divisor)) if divisor.strip("0") else number)
    return found


def _number(text: str) -> str | None:
    """Return the last number of a text, but of no aside that derives it and of no comparison that follows it."""
    text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    said = _ASIDE.sub(lambda aside: "" if len(_numbers(aside[0])) > 1 else aside[0], text)
    comparison = _COMPARISON.search(said)
    for part in (said[: comparison.start()] if comparison else said, said, text):
        found = _numbers(part)
        if found:
            return found[-1]
    return None


def _stated_number(text: str) -> str | None:
    """Return the number that a statement begins with, or that its equation ends with; else `_number`."""
    said = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    said = _FRACTION.sub(r"\1/\2", said)
    lead = _LEAD.match(said)
    first = _NUMBER.match(said, lead.end() if lead else 0)
    if first is None:
        return _number(text)
    clause = _ASIDE.sub("", said[first.start() :]).partition(", ")[0]
    result = _numbers(clause.rpartition("=")[2]) if "=" in clause else []
    if result:
        return result[0]
    return _number(text) if _CONTINUED.match(said, first.end()) else _numbers(first[0])[0]


def _sequence(text: str, order: Callable[[list[str]], list[str]]) -> str | None:
    lists = re.findall(r"\[([^\[\]]*)\]", text)
    found = order(_numbers(lists[-1] if lists else re.split("[=:]", text)[-1]))
    return " ".join(found) if found or (lists and not lists[-1].strip()) else None


def _matches(text: str, pattern: str, *, every: bool) -> str | None:
    """The last or every match of `pattern`, or of its groups, behind the last `=`, without decoration."""
    found = (match.groups("") or (match[0],) for match in re.finditer(pattern, text.rpartition("=")[2].casefold()))
    bare = [[" ".join(item.split()).strip(" .`'\"*$[]()+") for item in "/".join(g).split(",")] for g in found]
    kept = sorted({", ".join(sorted(items)) for items in bare}) if every else map(", ".join, bare[-1:])
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


class PlainAnswerReward(Verifier):
    r"""Correct when the final answer, read in a given form, is a reference answer.

    Only the answer of the response is read, not its thoughts (`split_response`). If it has a box, the last box
    alone decides. Otherwise the first of these that has the form does: what follows `####`, "answer is" or
    "answer:" (`marked_or_stated`); the last line; the lines before it. `Score.answer` is None if none has it. Case,
    quotes and other decoration never count. Nothing is evaluated. An unknown form is a ValueError.

    | form | what is read, and when it is correct |
    |---|---|
    | `number` | the number: equal in value; `1,000.0`, `1e3` and `2000/2` are `1000` |
    | `numbers`, `multiset` | all numbers of the last `[…]`, or behind the last `=` or `:`: in order, or in any order |
    | `word`, `text`, `set` | the last match of `pattern`, by default a word; the line; all matches, in any order |
    | `grid` | the last block of rows without words, also as `[[…], […]]`: the same cells |

    The number of a box, or of what follows `####` or "answer is", is the one that it begins with, perhaps after
    `x =`, `about` or a currency: 42 of `42 apples (3 bags of 14)`. If an equation begins there, it is what the
    equation ends with: 7 of `3 + 4 = 7`. Otherwise, and in lines, the last number counts, but none of a derivation in
    parentheses and none of a comparison: 42 of `Tom has 42 apples, which is 50% more than 28`.

    Args:
        form: One of the forms in the table.
        digits: Significant digits to which numbers must agree, but not beyond the decimals of the reference; a whole
            number of no more digits must be equal. None: every number must be equal.
        pattern: Regular expression for `word` and `set`; if it has groups, only these are read.

    >>> PlainAnswerReward("number")("3 dozen are 36.", "36")
    Score(correct=True, answer='36', failure=None, steps=())
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
        self.form, self.digits, self._reader = form, digits, readers[form]

    def __call__(self, response: str, reference: Reference) -> Score:
        """Score one response against its reference answers."""
        answer = self._final(response)
        return Score(any(self._same(answer, self._read(text)) for text in references_of(reference)), answer)

    def check_reference(self, reference: Reference) -> None:
        """Refuse references that do not have the form."""
        for text in references_of(reference):
            if self._read(text) is None:
                raise ValueError(f"Expected a reference answer of the form `{self.form}`, but got {text[:80]!r}.")

    def _read(self, text: str, *, stated: bool = False) -> str | None:
        reader = _stated_number if stated and self.form == "number" else self._reader
        return reader(unicodedata.normalize("NFKC", text).replace("\N{MINUS SIGN}", "-"))

    def _final(self, response: str) -> str | None:
        answer = without_answer_marks(split_response(response).answer)[-LONGEST:]
        boxed = last_boxes(answer)
        if boxed:
            several = self.form in ("numbers", "multiset", "set")
            return self._read(", ".join(boxed) if several else boxed[-1], stated=True)
        if self.form == "grid":
            return self._read(answer)
        said = self._read(marked_or_stated(answer, reasons=True) or "", stated=True)
        if said is not None:
            return said
        read = map(self._read, reversed(answer.splitlines()))
        return next((found for found in read if found is not None), None)

    def _same(self, answer: str | None, reference: str | None) -> bool:
        if answer is None or reference is None or self.form not in ("number", "numbers", "multiset"):
            return answer is not None and answer == reference
        found, right = answer.split(), reference.split()
        return len(found) == len(right) and all(map(self._close, found, right))

    def _close(self, number: str, reference: str) -> bool:
        """Whether two numbers differ by at most half a unit of the last digit that counts."""
        decimals = len(reference.partition(".")[2])
        last = max(-decimals, Decimal(reference.partition("/")[0]).adjusted() - self.digits + 1) if self.digits else 0
        half = Fraction(10) ** last / 2 if self.digits and (decimals or last > 0) else 0
        return abs(Fraction(number) - Fraction(reference)) <= half


class FinalAnswerReward(Verifier):
    """Correct when the rest of the line after the last `marker` is a reference answer, as in GSM8K (`#### 72`).

    Plain numbers are compared by value (see `canonical_number`), anything else letter by letter: `27 apples` is not
    `27`. Fractions and formulas are for `MathReward`. Thoughts (`split_response`) are not read.

    >>> reward = FinalAnswerReward()
    >>> reward("12 + 15 = 27 #### 27", "27"), reward("I do not know", "27")
    (Score(correct=True, answer='27', failure=None, steps=()),
     Score(correct=False, answer=None, failure=None, steps=()))
    """

    def __init__(self, marker: str = "####") -> None:
        if not marker:
            raise ValueError("Expected a non-empty `marker`, but got ''.")
        self.marker = marker

    def check_reference(self, reference: Reference) -> None:
        """Refuse references that hold the marker or several lines, as worked solutions do."""
        for text in references_of(reference):
            if self.marker in text or len(text.strip().splitlines()) != 1:
                raise ValueError(
                    f"Expected a final answer on one line, without {self.marker!r}, but got {text[-40:]!r}. Where the "
                    "answers are worked solutions, set the source's worked=true."
                )

    def __call__(self, response: str, reference: Reference) -> Score:
        """Score one response against its reference answers."""
        texts = [after_marker(split_response(response).answer, self.marker), *references_of(reference)]
        answer, *right = (text and (canonical_number(text) or text.strip()) for text in texts)
        return Score(answer in right, answer)
