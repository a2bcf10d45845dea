"""A word problem as facts and a question: sentences are found without cutting formulas, figures or abbreviations."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import NamedTuple

from spans import math_spans

_ABBREVIATION = re.compile(
    r"\b(?:Mr|Mrs|Ms|Dr|St|Jr|Sr|No|vs|e\.g|i\.e|etc|a\.m|p\.m|approx|in|ft|oz|lb|lbs|hr|hrs|min|cm|Prof|Mt|Ave|U\.S|cf|[A-Z])\.\Z"
)
_ENDS_SENTENCE = re.compile(r"\.\s*(?:\\\]|\$\$)\Z")
_END = re.compile(r"[.?!](?=\s+[A-Z$\\(]|\s*\Z)")
_ANSWER_FORM = re.compile(
    r"(?:Express|Give|Write|Round|Enter|Leave|Put|Note|Simplify|State|Assume|Do not|Use|(?:Your |The )?[Aa]nswer)\b"
)
_UNSAFE = re.compile(
    r"\\begin|\\item|\[asy\]|\\qquad|[\"“”`:;|]|\.\.\.|\*\*|_{3,}|\n\s*[-*•\d(]"
    r"|\b(?:solution|subproblem|example|statements?|shown|figure|diagram|pictured?|graph|table|chart|below|above|following|"
    r"hint|correct|true|false|these|this problem|this question)\b",
    re.IGNORECASE,
)
_CHOICES = re.compile(r"\(?\b[A-E]\)\s*(?:\\|\d|\$|[A-Za-z])|\\text(?:bf|it)?\s*\{\s*\(")
_ASKING = re.compile(
    r"(?:Find|Compute|Determine|Evaluate|Calculate|Simplify|Factor|Expand|Solve|Express|Write)\b"
    r"|.*, (?:then )?(?:find|compute|determine|evaluate|calculate)\b"
)
_LONGEST = 1200
"""Characters; longer texts are rarely a plain story."""


class Story(NamedTuple):
    """A plain problem: facts, and one question at the end."""

    facts: tuple[str, ...]
    """Sentences before the question, in order."""
    task: str
    """The one sentence that asks."""
    form: str
    """Sentences after it that say how to write the answer; often empty."""

    @property
    def asked(self) -> str:
        """The question with the form of its answer."""
        return f"{self.task} {self.form}".strip()


class Question(NamedTuple):
    """What a rule works on."""

    text: str
    answer: tuple[str, ...]
    """Reference answers; what occurs in them is not renamed."""
    story: Story | None
    """The question as facts and a question; None where it is not surely that plain."""
    rng: random.Random
    """For choices between equally good results."""

    @classmethod
    def of(cls, text: str, answer: Sequence[str] = (), seed: int | str = 0) -> Question:
        """A question, read."""
        return cls(text, tuple(answer), read_story(text), random.Random(seed))


def split_sentences(text: str) -> list[str] | None:
    """Sentences with their punctuation, line breaks as spaces; None where a sentence has no end.

    >>> split_sentences("Dr. Li has $2.5$ kg at 5 p.m. on May 3. How much?  Use $x. y$!")
    ['Dr. Li has $2.5$ kg at 5 p.m. on May 3.', 'How much?', 'Use $x. y$!']
    """
    spans = math_spans(text)
    flat, position = "", 0
    for number, span in enumerate(spans):
        flat += f"{text[position : span.start()]}\0{number}\0"
        position = span.end()
        if _ENDS_SENTENCE.search(span[0]):  # a displayed formula with a full stop inside
            flat += "\1."
    flat = " ".join((flat + text[position:]).split())
    sentences, start = [], 0
    for end in _END.finditer(flat):
        sentence = flat[start : end.end()]
        if flat[end.start()] == "." and _ABBREVIATION.search(sentence) and end.end() < len(flat):
            continue
        sentences.append(sentence.strip())
        start = end.end()
    if flat[start:].strip():
        return None
    return [re.sub(r"\0(\d+)\0", lambda m: spans[int(m[1])][0], s.replace("\1.", "")) for s in sentences]


def read_story(question: str) -> Story | None:
    """The facts and the question; None where the text is not surely that plain.

    Refused are texts with figures, tables, lists, quotes, choices, examples, several questions, a question that does
    not stand at the end, brackets over several sentences, and texts that speak of something shown or listed.

    >>> read_story("Tom has 3 cats. He buys 2. How many? Answer in words.")
    Story(facts=('Tom has 3 cats.', 'He buys 2.'), task='How many?', form='Answer in words.')
    >>> read_story("How many? Tom has 3 cats.") is None
    True
    """
    if len(question) > _LONGEST or _UNSAFE.search(question) or _CHOICES.search(question):
        return None
    sentences = split_sentences(question)
    if not sentences or any(sentence.count("(") != sentence.count(")") for sentence in sentences):
        return None
    last = len(sentences) - 1
    while last > 0 and _ANSWER_FORM.match(sentences[last]) and not sentences[last].endswith("?"):
        last -= 1
    if last < len(sentences) - 1 and not _asks(sentences[last]):
        last += 1  # the task itself is one of "Express …", "Simplify …"
    *facts, task = sentences[: last + 1]
    if not _asks(task) or any("?" in fact or _ASKING.match(fact) for fact in facts):
        return None
    return Story(tuple(facts), task, " ".join(sentences[last + 1 :]))


def _asks(sentence: str) -> bool:
    return (sentence.endswith("?") and sentence.count("?") == 1) or bool(_ASKING.match(sentence))
