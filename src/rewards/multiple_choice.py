"""Verifiers for multiple-choice letters, as in GPQA, and for benchmarks that also have free answers."""

import re
from collections.abc import Callable, Sequence

from ..types import Score, Verifier
from .canonical import Reference, normalize_answer, references_of
from .extraction import is_doubted, last_boxes
from .response import split_response, without_answer_marks
from .workers import BackgroundVerifier


class MultipleChoiceReward(Verifier):
    r"""Verifier of the chosen letter, one of `choices` (in upper case), against reference letters.

    Only the answer of the response is read, not its thoughts (`split_response`). The first of these that
    occurs in the answer is read:

    1. the last box: `\boxed{B}`, `\boxed{\text{(b)}}`, `\boxed{B: 42}`;
    2. the last statement: `answer: B`, `the correct option is (b)`, `**Answer:** $\mathrm{B}$`, `Answer -
       'B'`;
    3. the last of the statements `B is the correct answer`, `I choose B`, with the letter in upper case;
    4. the last line, if it names one choice as `(B)` or consists of a choice: `B.`, `Option B`, `#### B`; or
       the only line, if it begins with the letter: `B. Paris`.

    A list names no choice: `A or B`, `A, B, C, D`, `A/B`, `A, perhaps B`, neighbouring boxes with different
    letters. A statement that is doubted or supposed ("I am not sure whether the answer is B", "B is correct
    if") and a box with other content (`\boxed{42}`) name no choice either. In these cases later items are not
    tried, so that a response cannot hedge between its box and its text. The article in "the answer is a
    guess" is not read as the choice A.

    >>> MultipleChoiceReward()(r"A tempting choice is (A), but $\boxed{\text{B}}$.", "B")
    Score(correct=True, answer='B', failure=None)
    """

    def __init__(self, choices: str = "ABCD") -> None:
        if not (choices.isascii() and choices.isalpha() and choices.isupper()):
            raise ValueError(
                f"Expected `choices` to be upper-case letters such as 'ABCD', but got {choices!r}."
            )
        self.choices = choices
        any_case = f"[{choices}{choices.lower()}]"
        letter = f"({any_case})"
        named = r"(?i:option|choice|letter|answer)[\s:*_]{1,8}"
        article = r"(?!(?<=a)\s+[A-Za-z])"
        self._boxed = re.compile(rf"(?:{named})?(?:{letter}|(?:\({letter}\)|{letter}[.:)])[^()]*)")
        self._stated = re.compile(
            r"(?<![^\W_])(?i:answer|choice|option|selection|solution)[\s*_\"']{0,8}"
            r"(?:[:：]|=|[-–—]{1,3}>?|→|⇒|(?i:is|was|(?:should|must|would) be)\b)"
            r"[\s:=*_]{0,8}(?:(?i:indeed|therefore|thus|clearly|certainly|definitely|probably|most likely|the)\s){0,2}"
            rf"(?:{named})?[\s*_$({{\['\"`“‘«]{{0,8}}"
            r"(?:\\[(\[]\s?)?(?:\\(?:text(?:bf)?|mathrm|mathbf|bf)\s?\{\(?)?"
            rf"(?P<letter>{any_case})(?!\w)(?!['’]\w)(?!\)?\s?\?){article}(?!\s(?:is|was)\s(?:not|wrong|incorrect|false)\b)"
        )
        capital = rf"[*_`'\"$]{{0,3}}(?<!\w)\(?(?P<letter>[{choices}])\)?(?!\w)(?!['’]\w)[*_`'\"$]{{0,3}}"
        self._called_correct = re.compile(
            rf"(?P<joint>\b(?i:or|and|nor|neither)\s|[/&]\s?|[{choices}]\)?,\s)?{capital}"
            r"\s(?i:is|must be|would be|should be)\s(?:(?i:therefore|thus|hence|indeed|clearly|definitely)\s)?"
            r"(?:(?i:the|my)\s)?(?:(?i:only|single)\s)?(?i:correct|right|best|true|final|answer)\b"
            r"(?!\s(?i:if|only|for|when|unless)\b)"
        )
        self._picked = re.compile(
            rf"\b(?i:I|we|I['’]ll|I['’]d)\s(?:(?i:would|will|therefore|thus|must)\s){{0,2}}"
            rf"(?i:choose|select|pick|go with)\s(?:{named})?{capital}"
        )
        self._alone = re.compile(rf"(?:(?i:option|choice)\s)?([{choices}])[ \t*]*[.)]?")
        self._titled = re.compile(
            rf"[*_(\s]{{0,4}}([{choices}])(?:\)|[.:])[*_]{{0,3}}\s+(?:(?!(?<!\w)[{choices}][).:])[^\n])*"
        )
        self._marked = re.compile(rf"(?<!\b[Nn]ot\s)\(([{choices}])\)(?!\s?\?)")
        self._listed = re.compile(self._another(any_case, named, article), re.MULTILINE)

    def _another(self, any_case: str, named: str, article: str) -> str:
        """Return a regular expression for the text after a letter if several letters are named."""
        decoration = r"[\s(*_$'\"`“‘]{0,8}"
        word = r"maybe|perhaps|possibly|probably|likely|also|even|else|potentially|alternatively|could be"
        word += r"|if\s[^,\n]{1,40},"
        hedge = rf"(?:(?i:{word})[,\s]{{1,3}})"
        joint = r"(?:[-–—/&+|\\]|(?i:and/or|or|and|to|through|vs\.?|versus|as well as|along with|together with|but)\b)"
        letter = rf"{any_case}(?!\w){article}"
        apart = r"(?!\s(?:is|was|can|does|would|has|are|fails?|cannot)\b)"
        kinds = (
            rf"(?:\(\s?)?(?:[,;]\s{{0,4}})?{joint},?{decoration}{hedge}{{0,3}}(?:{named})?{decoration}{letter}{apart}",
            rf"[,;]?\s{{0,4}}\(?{hedge}{{1,3}}{decoration}{letter}{apart}",
            rf"[,;]{decoration}{hedge}{{0,3}}{any_case}[)\]*_$'\"`”’]{{0,8}}\s{{0,4}}(?:[,;/&.?]|$|(?i:or|and)\b)",
            rf"(?:\s[{self.choices}][.):]?)+\s{{0,4}}$",
            rf"(?<=[.)])(?:[{self.choices}][.)]?)+$",
            rf"[^\n(]*(?<![\w(])(?<!\b[Nn]ot\s)(?:{any_case}\)|[{self.choices}]:)",
            r"[^\n]{0,80}\b(?i:could|might|may)\s(?:(?i:as well|also)\s)?(?i:be)\s"
            rf"(?:{named})?\(?[{self.choices}](?!\w)",
            rf"\s?(?i:if|when)\b[^\n]{{0,60}}(?<!\w)[{self.choices}]\)?,?\s(?i:if|when|otherwise)\b",
        )
        return rf"[\s)\]}}*_'\"”’`»$.:?]{{0,8}}(?:{'|'.join(kinds)})"

    def __call__(self, response: str, reference: Reference) -> Score:
        """Score one response against its reference letters."""
        letter = self._letter(without_answer_marks(split_response(response).answer))
        return Score(letter in self._references(reference), letter)

    def check_reference(self, reference: Reference) -> None:
        """Raise a ValueError if a reference is not among the choices."""
        self._references(reference)

    def _references(self, reference: Reference) -> set[str]:
        letters = {normalize_answer(text).upper() for text in references_of(reference)}
        if not letters <= set(self.choices):
            raise ValueError(
                f"Expected references among the choices {self.choices!r}, but got {reference!r}."
            )
        return letters

    def _letter(self, answer: str) -> str | None:
        boxed = last_boxes(answer)
        if boxed:
            letters = {self._letter_in_box(content) for content in boxed}
            return letters.pop() if len(letters) == 1 else None
        stated = list(self._stated.finditer(answer))
        if not stated:
            stated = [*self._called_correct.finditer(answer), *self._picked.finditer(answer)]
        if stated:
            return self._letter_stated(answer, max(stated, key=re.Match.start))
        last_line = answer.rstrip().rpartition("\n")[2].strip(" \t*'\"`“”‘’#")
        alone = self._alone.fullmatch(last_line) or self._titled.fullmatch(answer.strip())
        marked = {alone[1]} if alone else set(self._marked.findall(last_line))
        return marked.pop() if len(marked) == 1 else None

    def _letter_stated(self, answer: str, statement: re.Match[str]) -> str | None:
        """Return the letter of a statement; None if the statement is doubted or lists several letters."""
        if "joint" in statement.re.groupindex:  # "A or B is correct"
            several = statement["joint"] is not None
        else:
            several = self._listed.match(answer, statement.end()) is not None
        if several or is_doubted(answer, statement.start()):
            return None
        return str(statement["letter"]).upper()

    def _letter_in_box(self, content: str) -> str | None:
        content = normalize_answer(content).strip("'\"`“”‘’*_ ")
        named = self._boxed.fullmatch(content)
        if named is None or self._listed.match(content, max(map(named.end, range(1, 4)))):
            return None
        return "".join(filter(None, named.groups())).upper()


class MixedReward(BackgroundVerifier):
    r"""Verifier that scores by `choice` if every reference is a letter of its choices, otherwise by `free`.

    Scores are computed in the background. This verifier is for evaluation on benchmarks of both kinds. A
    reference that happens to be such a letter (in MATH, the name of a point) is scored as a choice, so that
    `\boxed{(b)}` and `\boxed{B: 42}` are correct too.
    """

    def __init__(self, choice: MultipleChoiceReward, free: Verifier) -> None:
        self.choice = choice
        self.free = free
        self.reads_response = free.reads_response

    def score_async(
        self, responses: Sequence[str], references: Sequence[Reference]
    ) -> Callable[[], list[Score]]:
        """Score letters, start comparing free answers, and return a function that waits for the scores."""
        pairs = list(zip(responses, references, strict=True))
        scores = {row: self.choice(*pair) for row, pair in enumerate(pairs) if self._is_choice(pair[1])}
        free = [row for row in range(len(pairs)) if row not in scores]
        wait = self.free.score_async([responses[row] for row in free], [references[row] for row in free])

        def finish() -> list[Score]:
            scores.update(zip(free, wait(), strict=True))
            return [scores[row] for row in range(len(pairs))]

        return finish

    def check_reference(self, reference: Reference) -> None:
        """Let the verifier `free` check a reference, unless it is a letter of a choice."""
        if not self._is_choice(reference):
            self.free.check_reference(reference)

    def reference_notes(self, reference: Reference) -> tuple[str, ...]:
        """Return what the verifier `self.free` notes on a reference; empty if it names a choice."""
        return () if self._is_choice(reference) else self.free.reference_notes(reference)

    def _is_choice(self, reference: Reference) -> bool:
        return {normalize_answer(text) for text in references_of(reference)} <= set(self.choice.choices)

    def close(self) -> None:
        """End the workers. The next comparison starts new workers."""
        self.free.close()
