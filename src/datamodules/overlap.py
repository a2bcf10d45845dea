"""Test questions that also occur among the training questions, in the same or nearly the same words."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..types import QuestionGroup

_FORMATTING = re.compile(
    r"\\(?:left|right|displaystyle|text(?:bf|it|rm)?|mbox|mathrm|q?quad|[lc]?dots)(?![A-Za-z])|\\[,;:! ]"
)
_SPELLINGS = ((re.compile(r"\\[dt]frac(?![A-Za-z])"), r"\\frac"), (re.compile(r"(?<=\d),(?=\d{3}(?!\d))"), ""))
Gram = tuple[str, ...]
"""Words in a row."""
_TOKEN = re.compile(r"(?<!\S)(?=\S*\*)[*.se]{5,}(?!\S)|[^\W\d_]+|\d+|[-+*/^=<>!]")
"""Also a row of a maze: of these, two share hardly six in a row."""


class Overlap(NamedTuple):
    """A test question and the training question that is most similar to it."""

    test: str  # id
    train: str  # id
    similarity: float
    """Share of the test question's n-grams found in it; 1 when the words are the same in the same order."""
    same_numbers: bool
    """Whether both contain the same numbers equally often: copies do, other questions of the same pattern do not."""


def words(question: str) -> tuple[str, ...]:
    r"""Words, numbers and operators of a question, without case, punctuation and formatting commands of LaTeX.

    >>> words(r"Compute $\dfrac{1,000}{2} \, + x$.")
    ('compute', 'frac', '1000', '2', '+', 'x')
    >>> words("Compute\n\\[\\frac{1000}2+x.\\]") == words(r"Compute $\dfrac{1,000}{2} \, + x$.")
    True
    """
    text = _FORMATTING.sub(" ", unicodedata.normalize("NFKC", question)).lower()
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    return tuple(_TOKEN.findall(text))


def find_overlaps(
    train: Sequence[QuestionGroup], tests: Mapping[str, Sequence[QuestionGroup]], n: int = 6, threshold: float = 0.5
) -> dict[str, list[Overlap]]:
    """Split → the most similar overlap of each test question that has one, in their order; any of several equals.

    An overlap has at least `threshold` (0 … 1) of the question's distinct n-grams in one training question or
    rephrasing. A question of fewer than n words overlaps only with exactly the same words. N-grams that most of the
    training texts hold, and more than 64, are taken for a common layout and do not count.
    """
    if n < 1 or not 0 < threshold <= 1:
        raise ValueError(f"Expected n ≥ 1 and a threshold above 0 and up to 1, but got {n} and {threshold}.")
    grams_of = {split: [_ngrams(words(group.question), n) for group in groups] for split, groups in tests.items()}
    wanted = {gram for rows in grams_of.values() for grams in rows for gram in grams}
    texts: list[tuple[str, str]] = []
    kept: list[set[Gram]] = []
    holders: dict[Gram, list[int]] = defaultdict(list)
    for group in train:
        for text in (group.question, *group.rephrasings):
            if found := _ngrams(words(text), n) & wanted:
                for gram in found:
                    holders[gram].append(len(kept))
                kept.append(found)
                texts.append((group.id, text))
    usual = {gram for gram, rows in holders.items() if len(rows) > max(len(texts) / 2, 64)}
    overlaps: dict[str, list[Overlap]] = {split: [] for split in tests}
    for split, groups in tests.items():
        for group, grams in zip(groups, grams_of[split], strict=True):
            row, count = _most_alike(own := grams - usual, kept, holders, threshold)
            if row is not None:
                id, text = texts[row]
                same_numbers = _numbers(text) == _numbers(group.question)
                overlaps[split].append(Overlap(group.id, id, round(count / len(own), 3), same_numbers))
    return overlaps


def _most_alike(
    grams: set[Gram], kept: Sequence[set[Gram]], holders: Mapping[Gram, Sequence[int]], threshold: float
) -> tuple[int | None, int]:
    """The text that shares most of the n-grams, and how many; None where no share reaches the threshold.

    The rarest n-grams are looked up first. A text without any of them can only share the rest, so that those which all
    texts share are not looked up once something better is known.
    """
    size, best, count = len(grams), None, 0
    while count < size and round((count + 1) / size, 3) < threshold:
        count += 1
    compared: set[int] = set()
    for looked_up, gram in enumerate(sorted(grams, key=lambda gram: len(holders.get(gram, ())))):
        for row in holders.get(gram, ()):
            if size - looked_up <= count:
                return best, count
            if row not in compared:
                compared.add(row)
                if (shared := _shared(grams, kept[row])) > count:
                    best, count = row, shared
    return best, count


def _shared(grams: set[Gram], others: set[Gram]) -> int:
    return len(grams & others)


def _ngrams(text: tuple[str, ...], n: int) -> set[Gram]:
    """Distinct runs of n words; the whole text where it is shorter, none where it is empty."""
    return {text[start : start + n] for start in range(max(1, len(text) - n + 1))} if text else set()


def _numbers(question: str) -> Counter[str]:
    return Counter(word for word in words(question) if word.isdigit())
