"""Find test questions that also occur among the training questions, in the same or nearly the same words."""

import hashlib
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import QuestionGroup

_FORMATTING = re.compile(
    r"\\(?:left|right|displaystyle|text(?:bf|it|rm)?|mbox|mathrm|q?quad|[lc]?dots)(?![A-Za-z])|\\[,;:! ]"
)
_SPELLINGS = (
    (re.compile(r"\\[dt]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"(?<=\d),(?=\d{3}(?!\d))"), ""),
)
_TOKEN = re.compile(r"(?<!\S)(?=\S*\*)[*.se]{5,}(?!\S)|[^\W\d_]+|\d+|[-+*/^=<>!]")
"""Pattern of words. A row of a maze counts as one word, since two mazes rarely share six successive rows."""
Gram = tuple[str, ...]
_COMMON = 64
"""Number of training texts; an n-gram that occurs in more texts is common."""
_REMEMBERED = 256
"""Number of lists of common n-grams whose counts are cached; questions of one layout share a list."""
# of a digest: 10,000 questions and 300,000 texts have an accidental match in one of 100,000 cases
DIGITS = 12


class Overlap(NamedTuple):
    """Test question with the most similar training question."""

    test: str  # id
    train: str  # id
    # share of the test question's n-grams in the training question; 1 for the same words in order
    similarity: float
    # whether both have the same numbers equally often: copies do, others of the same pattern do not
    same_numbers: bool


def words(question: str) -> tuple[str, ...]:
    r"""Return the words, numbers and operators of a question, without case, punctuation and LaTeX formatting.

    >>> words(r"Compute $\dfrac{1,000}{2} \, + x$.")
    ('compute', 'frac', '1000', '2', '+', 'x')
    >>> words("Compute\n\\[\\frac{1000}2+x.\\]") == words(r"Compute $\dfrac{1,000}{2} \, + x$.")
    True
    """
    text = _FORMATTING.sub(" ", unicodedata.normalize("NFKC", question)).lower()
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    return tuple(_TOKEN.findall(text))


def words_digest(text: Sequence[str]) -> str:
    """Return the digest of a text's words, `DIGITS` hexadecimal digits."""
    return hashlib.blake2b(" ".join(text).encode(), digest_size=DIGITS // 2).hexdigest()


def seen(groups: Iterable[QuestionGroup], noted: str) -> list[QuestionGroup]:
    """Return the groups for which `noted`, a string of joined digests, contains the question's digest."""
    known = {noted[start : start + DIGITS] for start in range(0, len(noted), DIGITS)}
    return [group for group in groups if words_digest(words(group.question)) in known]


def find_overlaps(
    train: Sequence[QuestionGroup],
    tests: Mapping[str, Sequence[QuestionGroup]],
    n: int = 6,
    threshold: float = 0.5,
    note: Callable[[Sequence[str]], object] | None = None,
) -> dict[str, list[Overlap]]:
    """Find the test questions that overlap with training, each with the most similar training question.

    Return the overlaps of each split, in the order of the split's questions.

    A test question overlaps with a training question or rephrasing that has at least a share `threshold` (0 …
    1) of the test question's distinct n-grams. A test question of fewer than n words overlaps only with a
    text of exactly the same words. An n-gram in more than 64 training texts, and in more than a tenth of
    them, is part of a common layout and does not count. `note` is called with the words of each training
    text.
    """
    if n < 1 or not 0 < threshold <= 1:
        raise ValueError(f"Expected n ≥ 1 and a threshold above 0 and up to 1, but got {n} and {threshold}.")
    grams_of: dict[str, list[set[Gram]]] = {}
    wanted: set[Gram] = set()
    for split, groups in tests.items():
        grams_of[split] = [_ngrams(words(group.question), n) for group in groups]
        wanted.update(*grams_of[split])
    texts: list[tuple[str, str]] = []
    for group in train:
        texts.extend((group.id, text) for text in (group.question, *group.rephrasings))
    holders: dict[Gram, list[int]] = defaultdict(list)
    for row, (_, text) in enumerate(texts):
        found = words(text)
        if note is not None:
            note(found)
        for gram in _ngrams(found, n) & wanted:
            holders[gram].append(row)
    usual = {gram for gram, rows in holders.items() if len(rows) > max(len(texts) / 10, _COMMON)}
    index = Index(len(texts), {gram: rows for gram, rows in holders.items() if gram not in usual})
    overlaps: dict[str, list[Overlap]] = {split: [] for split in tests}
    for split, groups in tests.items():
        for group, grams in zip(groups, grams_of[split], strict=True):
            own = grams - usual
            row, count = index.most_similar(own)
            if not count:
                continue
            similarity = round(count / len(own), 3)
            if similarity >= threshold:
                id, text = texts[row]
                same_numbers = _numbers(text) == _numbers(group.question)
                overlaps[split].append(Overlap(group.id, id, similarity, same_numbers))
    return overlaps


class Index:
    """Index of training texts by n-gram, which finds the text most similar to a question.

    Texts that were made from one layout share long lists of common n-grams. These are counted once for each
    distinct list, not for each text, so that the time grows with the number of texts, not with its square.

    Args:
        size: Number of training texts.
        holders: N-gram → rows of the texts that have it, ascending.
    """

    def __init__(self, size: int, holders: Mapping[Gram, Sequence[int]]) -> None:
        self.rare = {gram: rows for gram, rows in holders.items() if len(rows) <= _COMMON}
        common: list[list[int]] = [[] for _ in range(size)]
        self.numbers: dict[Gram, int] = {}
        for gram, rows in holders.items():
            if len(rows) > _COMMON:
                number = self.numbers.setdefault(gram, len(self.numbers))
                for row in rows:
                    common[row].append(number)
        layouts: dict[tuple[int, ...], int] = {}
        self.first: list[int] = []  # layout → first text that has it
        self.layout_of: list[int] = []  # text → layout
        for row, numbers in enumerate(common):
            layout = layouts.setdefault(tuple(numbers), len(layouts))
            if layout == len(self.first):
                self.first.append(row)
            self.layout_of.append(layout)
        having: list[list[int]] = [[] for _ in self.numbers]
        for kept, layout in layouts.items():
            for number in kept:
                having[number].append(layout)
        self.having = [np.array(found, dtype=np.int64) for found in having]  # common n-gram → layouts
        self.known: dict[frozenset[int], tuple[NDArray[np.int64], int]] = {}

    def most_similar(self, grams: Iterable[Gram]) -> tuple[int, int]:
        """Return the row of the text that shares most of `grams`, and the number of shared n-grams.

        Ties go to the first text.
        """
        grams = list(grams)
        common = frozenset(self.numbers[gram] for gram in grams if gram in self.numbers)
        if common not in self.known:
            counts = np.zeros(len(self.first), dtype=np.int64)
            for number in common:
                counts[self.having[number]] += 1
            if len(self.known) >= _REMEMBERED:
                self.known.clear()
            self.known[common] = counts, int(counts.argmax()) if len(counts) else 0
        counts, best = self.known[common]
        shared: Counter[int] = Counter()
        for gram in grams:
            shared.update(self.rare.get(gram, ()))
        found = [(count + int(counts[self.layout_of[row]]), -row) for row, count in shared.items()]
        if len(counts):
            found.append((int(counts[best]), -self.first[best]))
        count, row = max(found, default=(0, 0))
        return -row, count


def _ngrams(text: tuple[str, ...], n: int) -> set[tuple[str, ...]]:
    """Return the distinct n-grams of a text; the whole text if it is shorter than n words."""
    return {text[start : start + n] for start in range(max(1, len(text) - n + 1))} if text else set()


def _numbers(question: str) -> Counter[str]:
    return Counter(word for word in words(question) if word.isdigit())
