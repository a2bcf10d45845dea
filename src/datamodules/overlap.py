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
_TOKEN = re.compile(r"(?<!\S)(?=\S*\*)[*.se]{5,}(?!\S)|[^\W\d_]+|\d+|[-+*/^=<>!]")
"""Also a row of a maze: of these, two share hardly six in a row."""


class Overlap(NamedTuple):
    """A test question and the training question that is most similar to it."""

    test: str
    """Id of the test question."""
    train: str
    """Id of the training question."""
    similarity: float
    """1 when the words are the same in the same order, else the share of the test question's n-grams found in it."""
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
    """Test questions whose n-grams occur, to a share of at least `threshold`, in one training question or rephrasing.

    A question of fewer than n words overlaps only with exactly the same words. A question in other words is not found,
    since its n-grams differ. The cost is proportional to the words of both sides: a few seconds for 17,000 against
    5,000 questions.

    Args:
        train: Training questions.
        tests: Split → its questions.
        n: Words of an n-gram.
        threshold: Share of a test question's distinct n-grams, above 0 and at most 1.

    Returns:
        Split → the most similar overlap of each of its questions that has one, in their order.

    Raises:
        ValueError: `n` or `threshold` is out of its range.

    >>> def question(id, text):
    ...     return QuestionGroup(id, text, (), ("?",))
    >>> train = [question("a", "Find the sum of 3 and 4 and then double it."), question("b", "Solve $x = 5$.")]
    >>> test = [question("c", "Find the sum of 3 and 5 and then double it."), question("d", "solve: $x=5$"),
    ...         question("e", "How many primes are below 10?")]
    >>> for overlap in find_overlaps(train, {"test": test}, n=3)["test"]:
    ...     print(overlap)
    Overlap(test='c', train='a', similarity=0.667, same_numbers=False)
    Overlap(test='d', train='b', similarity=1.0, same_numbers=True)
    """
    if n < 1 or not 0 < threshold <= 1:
        raise ValueError(f"Expected n ≥ 1 and a threshold above 0 and up to 1, but got {n} and {threshold}.")
    questions = [(split, group) for split, groups in tests.items() for group in groups]
    texts = [words(group.question) for _, group in questions]
    sizes = []
    holders: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for row, text in enumerate(texts):
        grams = _ngrams(text, n)
        sizes.append(len(grams))
        for gram in grams:
            holders[gram].append(row)
    best: dict[int, Overlap] = {}
    for group in train:
        for text in map(words, (group.question, *group.rephrasings)):
            shared = Counter(row for gram in _ngrams(text, n) & holders.keys() for row in holders[gram])
            for row, count in shared.items():
                share = 1.0 if text == texts[row] else round(count / sizes[row], 3)
                if share >= threshold and (row not in best or share > best[row].similarity):
                    same_numbers = _numbers(text) == _numbers(texts[row])
                    best[row] = Overlap(questions[row][1].id, group.id, share, same_numbers)
    overlaps: dict[str, list[Overlap]] = {split: [] for split in tests}
    for row, overlap in sorted(best.items()):
        overlaps[questions[row][0]].append(overlap)
    return overlaps


def _ngrams(text: tuple[str, ...], n: int) -> set[tuple[str, ...]]:
    """Distinct runs of n words; the whole text where it is shorter, none where it is empty."""
    return {text[start : start + n] for start in range(max(1, len(text) - n + 1))} if text else set()


def _numbers(text: tuple[str, ...]) -> Counter[str]:
    return Counter(word for word in text if word.isdigit())
