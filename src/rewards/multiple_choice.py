"""The letter of a multiple-choice answer, as in GPQA; such questions beside ones with free answers."""

import re
from collections.abc import Callable, Sequence

from ..types import Score, Verifier
from .canonical import Reference, normalize_answer, references_of
from .extraction import last_boxes
from .response import split_response, without_answer_marks
from .workers import BackgroundVerifier


class MultipleChoiceReward(Verifier):
    r"""Correct when the chosen letter, one of `choices` (in upper case), is a reference letter.

    Only the answer of the response is read, not its thoughts (`split_response`). The first of these that it has
    decides:

    1. the last box: `\boxed{B}`, `\boxed{\text{(b)}}`, `\boxed{B: 42}`;
    2. the last statement: `answer: B`, `the correct option is (b)`, `**Answer:** $\mathrm{B}$`, `Answer - 'B'`;
    3. the last line, when it names one choice as `(B)` or consists of it: `B.`, `Option B`.

    A list names no choice: `A or B`, `A, B, C, D`, `A/B`, neighbouring boxes with different letters. Nor does a box
    that holds anything else (`\boxed{42}`), and the text is not tried then: a response cannot hedge between its box
    and its text. The article in "the answer is a guess" is no choice.

    >>> MultipleChoiceReward()(r"A tempting choice is (A), but $\boxed{\text{B}}$.", "B")
    Score(correct=True, answer='B', failure=None, steps=())
    """

    def __init__(self, choices: str = "ABCD") -> None:
        if not (choices.isascii() and choices.isalpha() and choices.isupper()):
            raise ValueError(f"Expected `choices` to be upper-case letters such as 'ABCD', but got {choices!r}.")
        self.choices = choices
        any_case = f"[{choices}{choices.lower()}]"
        letter = f"({any_case})"
        named = r"(?i:option|choice|letter|answer)[\s:*_]{1,8}"
        article = r"(?!(?<=a)\s+[A-Za-z])"
        self._boxed = re.compile(rf"(?:{named})?(?:{letter}|(?:\({letter}\)|{letter}[.:)])[^()]*)")
        self._stated = re.compile(
            r"\b(?i:answer|choice|option)[\s*_]{0,8}"
            r"(?::|=|[-–—]{1,3}>?|→|⇒|(?i:is|was|(?:should|must|would) be)\b)"
            r"[\s:=*_]{0,8}(?:(?i:indeed|therefore|thus|clearly|definitely|probably|most likely|the)\s){0,2}"
            rf"(?:{named})?[\s*_$({{\['\"`“‘«]{{0,8}}"
            rf"(?:\\(?:text(?:bf)?|mathrm|mathbf|bf)\s?\{{\(?)?{letter}(?!\w)(?!['’]\w){article}"
        )
        self._alone = re.compile(rf"(?:(?i:option|choice)\s)?([{choices}])[ \t*]*[.)]?")
        self._marked = re.compile(rf"\(([{choices}])\)")
        self._listed = re.compile(
            rf"[\s)\]}}*_'\"”’`»$.:]{{0,8}}(?:"
            rf"(?:[,;]\s{{0,4}})?(?:[-–—/&+|]|(?i:or|and|to|through)\b)[\s(*_$'\"`“‘]{{0,8}}(?:{named})?{any_case}(?!\w){article}"
            r"(?!\s(?:is|was|can|does|would|has)\b)"
            rf"|[,;][\s(*_$'\"`“‘]{{0,8}}{any_case}[)\]*_$'\"`”’]{{0,8}}\s{{0,4}}(?:[,;/&.]|$|(?i:or|and)\b)"
            rf"|(?:\s[{choices}][.):]?)+\s{{0,4}}$"
            rf"|(?<=[.)])(?:[{choices}][.)]?)+$"
            rf"|[^\n(]*(?<![\w(])(?:{any_case}\)|[{choices}]:)"
            r")",
            re.MULTILINE,
        )

    def __call__(self, response: str, reference: Reference) -> Score:
        """Score one response against its reference letters."""
        letter = self._letter(without_answer_marks(split_response(response).answer))
        return Score(letter in self._references(reference), letter)

    def check_reference(self, reference: Reference) -> None:
        """Refuse references that are not among the choices."""
        self._references(reference)

    def _references(self, reference: Reference) -> set[str]:
        letters = {normalize_answer(text).upper() for text in references_of(reference)}
        if not letters <= set(self.choices):
            raise ValueError(f"Expected references among the choices {self.choices!r}, but got {reference!r}.")
        return letters

    def _letter(self, answer: str) -> str | None:
        boxed = last_boxes(answer)
        if boxed:
            letters = {self._letter_in_box(content) for content in boxed}
            return letters.pop() if len(letters) == 1 else None
        stated = list(self._stated.finditer(answer))
        if stated:
            listed = self._listed.match(answer, stated[-1].end())
            return None if listed else str(stated[-1][1]).upper()
        last_line = answer.rstrip().rpartition("\n")[2].strip(" \t*'\"`“”‘’")
        alone = self._alone.fullmatch(last_line)
        marked = {alone[1]} if alone else set(self._marked.findall(last_line))
        return marked.pop() if len(marked) == 1 else None

    def _letter_in_box(self, content: str) -> str | None:
        content = normalize_answer(content).strip("'\"`“”‘’*_ ")
        named = self._boxed.fullmatch(content)
        if named is None or self._listed.match(content, max(map(named.end, range(1, 4)))):
            return None
        return "".join(filter(None, named.groups())).upper()


class MixedReward(BackgroundVerifier):
    r"""Scores by `choice` where every reference is a letter of its choices, by `free` elsewhere, in the background.

    For evaluation on benchmarks of both kinds. A free answer that happens to be such a letter (in MATH, the name of a
    point) is scored as a choice: `\boxed{(b)}` and `\boxed{B: 42}` count as well.
    """

    def __init__(self, choice: MultipleChoiceReward, free: Verifier) -> None:
        self.choice = choice
        self.free = free
        self.reads_response = free.reads_response

    def score_async(self, responses: Sequence[str], references: Sequence[Reference]) -> Callable[[], list[Score]]:
        """Score letters and start comparing free answers; returns a function that waits for the scores."""
        pairs = list(zip(responses, references, strict=True))
        scores = {row: self.choice(*pair) for row, pair in enumerate(pairs) if self._is_choice(pair[1])}
        free = [row for row in range(len(pairs)) if row not in scores]
        wait = self.free.score_async([responses[row] for row in free], [references[row] for row in free])

        def finish() -> list[Score]:
            scores.update(zip(free, wait(), strict=True))
            return [scores[row] for row in range(len(pairs))]

        return finish

    def check_reference(self, reference: Reference) -> None:
        """Let `free` check references that are no letters."""
        if not self._is_choice(reference):
            self.free.check_reference(reference)

    def reference_notes(self, reference: Reference) -> tuple[str, ...]:
        """Return the notes of `free` on references that are no letters."""
        return () if self._is_choice(reference) else self.free.reference_notes(reference)

    def _is_choice(self, reference: Reference) -> bool:
        return {normalize_answer(text) for text in references_of(reference)} <= set(self.choice.choices)

    def close(self) -> None:
        """End the workers; the next comparison starts new ones."""
        self.free.close()
