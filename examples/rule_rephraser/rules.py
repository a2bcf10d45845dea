"""A rephraser without any model: rules that move or rename text and leave everything else as it was.

Rules read text, not meaning, so each applies only where its conditions make the result the same problem, and returns
None otherwise. Many questions get fewer rephrasings than asked for, some none; the reason is reported. What they write
is plainer than what a language model writes: the order and format of information changes, its wording hardly.

| rule | what it does |
|---|---|
| `question_first` | asks first, then tells the situation |
| `list_form` | givens as a list, then the question |
| `command` | `What is X?` ↔ `Find X.` |
| `rename_people` | other first names |
| `rename_variables` | other letters for variables |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from renaming import rename_people, rename_variables
from stories import Question

from tagrpo.rephrasing.calls import ApiCall
from tagrpo.rephrasing.candidates import Candidate, Check, Reviewed
from tagrpo.rephrasing.client import Client
from tagrpo.types import QuestionGroup

Rule = Callable[[Question], str | None]
"""The rephrasing, or None where the rule does not apply safely."""

_COMMANDS = "Find|Determine|Compute|Calculate|Evaluate"
_WHAT_IS = re.compile(r"What is (?P<thing>(?:the|\$).+?)\?")
_FIND = re.compile(
    rf"(?:{_COMMANDS}) (?P<thing>the (?!values\b|solutions\b|roots\b|numbers\b|coordinates\b).+?|\$[^$]+\$)\."
)
_PLURAL = re.compile(r"\b(?:and|possible values|all)\b")


def question_first(question: Question) -> str | None:
    """Ask first, then tell the situation in its own order.

    Both parts are announced, so that words of the question that point to the situation (`he`, `the remaining ones`)
    are read as they were meant.

    >>> print(question_first(Question.of("Tom has 3 cats. He buys 2. How many cats does he have?")))
    Answer this about the situation below: How many cats does he have?
    <BLANKLINE>
    Situation: Tom has 3 cats. He buys 2.
    """
    story = question.story
    if story is None or not story.facts:
        return None
    opening = question.rng.choice(
        ("Question about the situation below:", "Answer this about the situation below:")
    )
    return f"{opening} {story.asked}\n\nSituation: {' '.join(story.facts)}"


def list_form(question: Question) -> str | None:
    """The facts as a list in their order, then the question.

    >>> print(list_form(Question.of("Tom has 3 cats. He buys 2. How many cats does he have?")))
    Facts:
    - Tom has 3 cats.
    - He buys 2.
    <BLANKLINE>
    Asked: How many cats does he have?
    """
    story = question.story
    if story is None or len(story.facts) < 2:
        return None
    heading, asked = question.rng.choice((("Given", "Question"), ("Facts", "Asked")))
    return f"{heading}:\n" + "\n".join(f"- {fact}" for fact in story.facts) + f"\n\n{asked}: {story.asked}"


def command(question: Question) -> str | None:
    """Turn the question into a command, or the command into a question.

    >>> command(Question.of("A box holds 6 eggs. What is the number of eggs in 4 boxes?"))
    'A box holds 6 eggs. Determine the number of eggs in 4 boxes.'
    >>> command(Question.of("Compute $6 + 7$."))
    'What is the value of $6 + 7$?'
    """
    story = question.story
    if story is None or story.asked.count("?") + story.asked.count(". ") > 1:
        return None
    if match := _WHAT_IS.fullmatch(story.task):
        asked = f"{question.rng.choice(('Find', 'Determine'))} {match['thing']}."
    elif (match := _FIND.fullmatch(story.task)) and not _PLURAL.search(
        re.sub(r"\$[^$]*\$", "$", match["thing"])
    ):
        thing = match["thing"]
        if thing.startswith("$") and ("=" in thing or "," in thing):
            return None
        asked = f"What is {'the value of ' if thing.startswith('$') else ''}{thing}?"
    else:
        return None
    return " ".join([*story.facts, asked, *([story.form] if story.form else [])])


RULES: Mapping[str, Rule] = {
    "question_first": question_first,
    "list_form": list_form,
    "command": command,
    "rename_people": rename_people,
    "rename_variables": rename_variables,
}
"""name → rule."""


class RuleRephraser:
    """A `tagrpo.rephrasing.rephraser.Rephraser` that asks nobody; the same seed gives the same rephrasings.

    Args:
        count: Rephrasings wanted per question. Many questions get fewer: `shortfall` says so.
        rules: Names of the rules to use; None for all.
        seed: Of the choices between rules and between names.

    Raises:
        ValueError: an unknown rule, or a count below 1.
    """

    def __init__(self, count: int = 3, rules: Sequence[str] | None = None, seed: int = 0) -> None:
        self.rules = list(RULES if rules is None else rules)
        if count < 1 or set(self.rules) - set(RULES):
            raise ValueError(
                f"Expected count ≥ 1 and rules among {', '.join(RULES)}, but got {count} and {rules}."
            )
        self.count = count
        self.seed = seed

    def calls(self, groups: Sequence[QuestionGroup]) -> list[ApiCall]:  # noqa: ARG002 (of the protocol)
        """None."""
        return []

    async def propose(
        self,
        groups: Sequence[QuestionGroup],
        checks: Mapping[str, Check],
        client: Client,  # noqa: ARG002 (of the protocol)
    ) -> list[Reviewed]:
        """Apply every rule, keep the first that pass the checks."""
        return [self._propose(group, checks) for group in groups]

    def _propose(self, group: QuestionGroup, checks: Mapping[str, Check]) -> Reviewed:
        reviewed, passed = Reviewed(group), 0
        now = datetime.now(UTC).isoformat(timespec="seconds")
        for rule, text in self.rephrase(group.question, group.answer).items():
            if passed < self.count:
                provenance = {"model": "rules", "instruction": rule, "time": now, "seed": self.seed}
                passed += reviewed.add(Candidate(text, provenance), checks)
        if passed < self.count:
            applied = f"{len(reviewed.candidates)} of {len(self.rules)} rules apply safely"
            reviewed.shortfall = f"{applied}, {passed} results pass the checks"
        return reviewed

    def rephrase(self, question: str, answer: Sequence[str] = ()) -> dict[str, str]:
        """Rule → rephrasing, of the rules that apply safely, in an order that follows from the seed.

        >>> list(RuleRephraser().rephrase("If $x = 3$, what is the value of $2x + 3$?", ("9",)))
        ['rename_variables']
        """
        read = Question.of(question, answer, f"{self.seed}/{question}")
        found = {rule: RULES[rule](read) for rule in read.rng.sample(self.rules, len(self.rules))}
        return {rule: text for rule, text in found.items() if text is not None and text != question}
