"""A rephraser without any model: rules that move or rename text and leave everything else as it was.

Rules read text, not meaning, so each applies only where its conditions make the result the same problem, and returns
None otherwise. Many questions get fewer rephrasings than asked for, some none; the reason is reported. What they write
is plainer than what a language model writes: the order and format of information changes, its wording hardly.

| rule | what it does |
|---|---|
| `question_first` | asks first, then tells the situation |
| `list_form` | givens as a list, then the question |
| `condition_last` | `If C, what is X?` → `What is X if C?`, and the other way round |
| `reorder` | gives independent facts in another order |
| `command` | `What is X?` ↔ `Find X.` |
| `rename_people` | other first names |
| `rename_variables` | other letters for variables |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from .names import rename_people
from .sentences import Problem
from .variables import rename_variables

Rule = Callable[[Problem], str | None]
"""The rephrasing, or None where the rule does not apply safely."""


class Rewritten(NamedTuple):
    """What a rule made of a question."""

    rule: str
    text: str


_REFERS = re.compile(
    r"\b(?:he|she|it|they|him|her|his|hers|its|them|their|theirs|this|that|these|those|such|then|now|there|here|same|other|"
    r"others|another|next|after|before|later|earlier|finally|still|again|also|already|instead|remaining|remainder|rest|"
    r"left|more|fewer|less|first|second|third|last|previous|following|above|below|respectively|total|together|each|both|"
    r"one|ones|so|thus|therefore|however|but|and then|latter|former|yesterday|today|tomorrow|meanwhile|otherwise|only|"
    r"twice|times|half|too|either|neither|instead|until|since|while|when|once|as|than|if|suppose|let|assume|note|except)\b",
    re.IGNORECASE,
)
"""Words that may lean on another sentence; a sentence with one of them keeps its place."""

_HOLDS = re.compile(r"\b(?:is|are|has|have|costs?|weighs?|sells?|contains?|holds?)\b")
"""What happens has an order, what holds has none."""
_INTRODUCED = re.compile(r"\bthe\b|\d\W*\Z", re.IGNORECASE)
"""Speaks of something that an earlier fact may have introduced; a number without its unit does, too."""
_RELATION = r"\$[^$,]*(?:=|<|>|\\[lg]eq?\b|\\neq?\b)[^$,]*\$"
_RELATIONS = re.compile(
    rf"((?:[Ii]f|[Ss]uch that|[Gg]iven that|[Ss]uppose(?: that)?) )({_RELATION}) and ({_RELATION})([,.?])"
)
_ORDINAL = re.compile(r"\b(?:first|second|former|latter|respectively|last|each|both|equations?|order)\b", re.IGNORECASE)
_IF = re.compile(
    r"(?:If|Given that|Suppose that|Suppose) (?P<condition>.+?), (?:then )?(?P<task>[a-z].+?)(?P<end>[?.])"
)
_TASK_IF = re.compile(r"(?P<task>.+?),? (?:if|given that) (?P<condition>.+?)(?P<end>[?.])")
_ASKS = re.compile(
    r"(?:what|which|how|find|compute|determine|evaluate|calculate|express|solve|simplify)\b", re.IGNORECASE
)
_LEANS = re.compile(
    r"\b(?:he|she|it|they|him|her|his|its|them|their|this|these|those|then|also|such|"
    r"the (?:two|three|four|same|others?|rest))\b",
    re.IGNORECASE,
)
_OPEN = re.compile(r"\b(?:only|even|as|and|or|determine|whether|decide)\Z", re.IGNORECASE)
_OF_THE_TASK = re.compile(r"\b(?:the|each|every|no|both|all|only|not)\b", re.IGNORECASE)
"""Where a condition stands first, it can't speak of what the task introduces."""
_COMMANDS = "Find|Determine|Compute|Calculate|Evaluate"
_WHAT_IS = re.compile(r"What is (?P<thing>(?:the|\$).+?)\?")
_FIND = re.compile(
    rf"(?:{_COMMANDS}) (?P<thing>the (?!values\b|solutions\b|roots\b|numbers\b|coordinates\b).+?|\$[^$]+\$)\."
)
_PLURAL = re.compile(r"\b(?:and|possible values|all)\b")


def question_first(problem: Problem) -> str | None:
    """Ask first, then tell the situation in its own order.

    Both parts are announced, so that words of the question that point to the situation (`he`, `the remaining ones`)
    are read as they were meant.

    >>> print(question_first(Problem.of("Tom has 3 cats. He buys 2. How many cats does he have?")))
    Answer this about the situation below: How many cats does he have?
    <BLANKLINE>
    Situation: Tom has 3 cats. He buys 2.
    """
    story = problem.story
    if story is None or not story.facts:
        return None
    opening = problem.rng.choice(("Question about the situation below:", "Answer this about the situation below:"))
    return f"{opening} {story.asked}\n\nSituation: {' '.join(story.facts)}"


def list_form(problem: Problem) -> str | None:
    """The facts as a list in their order, then the question.

    >>> print(list_form(Problem.of("Tom has 3 cats. He buys 2. How many cats does he have?")))
    Facts:
    - Tom has 3 cats.
    - He buys 2.
    <BLANKLINE>
    Asked: How many cats does he have?
    """
    story = problem.story
    if story is None or len(story.facts) < 2:
        return None
    heading, asked = problem.rng.choice((("Given", "Question"), ("Facts", "Asked")))
    return f"{heading}:\n" + "\n".join(f"- {fact}" for fact in story.facts) + f"\n\n{asked}: {story.asked}"


def reorder(problem: Problem) -> str | None:
    """Give facts in another order that do not lean on each other, or swap two relations that hold together.

    Facts only where none has a word that may point to another one or to a time. Relations only as `$…$ and $…$` in a
    condition, each with a sign of equality or order.

    >>> reorder(Problem.of("Apples cost 2 dollars. Pears cost 3 dollars. How much do 4 apples and 5 pears cost?"))
    'Pears cost 3 dollars. Apples cost 2 dollars. How much do 4 apples and 5 pears cost?'
    >>> reorder(Problem.of("If $a+b = 5$ and $a-b = 1$, find $a$."))
    'If $a-b = 1$ and $a+b = 5$, find $a$.'
    >>> reorder(Problem.of("Tom has 3 cats. He buys 2. How many cats does he have?"))
    """
    if len(_RELATIONS.findall(problem.question)) == 1 and not _ORDINAL.search(problem.question):
        return _RELATIONS.sub(r"\1\3 and \2\4", problem.question)
    story = problem.story
    if story is None or len(story.facts) < 2 or any(_REFERS.search(fact) for fact in story.facts):
        return None
    if not all(_HOLDS.search(fact) for fact in story.facts) or any(_INTRODUCED.search(fact) for fact in story.facts):
        return None
    facts = list(story.facts)
    while facts == list(story.facts):
        problem.rng.shuffle(facts)
    return " ".join([*facts, story.asked])


def condition_last(problem: Problem) -> str | None:
    """Move the condition of a question of one sentence to its other end.

    >>> condition_last(Problem.of("If $x = 3$, what is the value of $2x + 3$?"))
    'What is the value of $2x + 3$ if $x = 3$?'
    >>> condition_last(Problem.of("What is $f(2)$ if $f(x) = x^2$?"))
    'Suppose that $f(x) = x^2$. What is $f(2)$?'
    """
    story = problem.story
    if story is None or story.facts or story.form:
        return None
    if match := _IF.fullmatch(story.asked):
        condition, task, end = match["condition"], match["task"], match["end"]
        plain = "," not in _outside_math(condition) and not _ASKS.match(condition)
        if not plain or not _ASKS.match(task) or _LEANS.search(task) or " if " in task or _splits_math(condition):
            return None
        return f"{task[0].upper()}{task[1:]} if {condition}{end}"
    if match := _TASK_IF.fullmatch(story.asked):
        condition, task, end = match["condition"], match["task"], match["end"]
        leans = _LEANS.search(condition) or _OF_THE_TASK.search(_outside_math(condition))
        if leans or _splits_math(task) or re.search(r"\bif\b", condition) or _OPEN.search(task):
            return None
        return f"Suppose that {condition}. {task}{end}" if _ASKS.match(task) else None
    return None


def _splits_math(part: str) -> bool:
    return part.count("$") % 2 == 1


def _outside_math(text: str) -> str:
    return re.sub(r"\$[^$]*\$", "$", text)


def command(problem: Problem) -> str | None:
    """Turn the question into a command, or the command into a question.

    >>> command(Problem.of("A box holds 6 eggs. What is the number of eggs in 4 boxes?"))
    'A box holds 6 eggs. Determine the number of eggs in 4 boxes.'
    >>> command(Problem.of("Compute $6 + 7$."))
    'What is the value of $6 + 7$?'
    """
    story = problem.story
    if story is None or story.asked.count("?") + story.asked.count(". ") > 1:
        return None
    if match := _WHAT_IS.fullmatch(story.task):
        verb = problem.rng.choice(("Find", "Determine"))
        asked = f"{verb} {match['thing']}."
    elif (match := _FIND.fullmatch(story.task)) and not _PLURAL.search(_outside_math(match["thing"])):
        thing = match["thing"]
        if thing.startswith("$") and ("=" in thing or "," in thing):
            return None
        asked = f"What is {'the value of ' if thing.startswith('$') else ''}{thing}?"
    else:
        return None
    return " ".join([*story.facts, asked, *([story.form] if story.form else [])])


RULES: Mapping[str, Rule] = {
    "question_first": question_first,
    "condition_last": condition_last,
    "list_form": list_form,
    "reorder": reorder,
    "command": command,
    "rename_people": rename_people,
    "rename_variables": rename_variables,
}
"""name → rule."""


def rephrase(
    question: str,
    answer: Sequence[str],
    count: int,
    seed: int | str = 0,
    rules: Sequence[str] = tuple(RULES),
) -> list[Rewritten]:
    """Up to `count` different rephrasings, each by another rule; fewer where fewer rules apply safely.

    Rules take turns in an order that follows from the seed.

    >>> [rewritten.rule for rewritten in rephrase("If $x = 3$, what is the value of $2x + 3$?", ("9",), 3)]
    ['rename_variables', 'condition_last']

    Raises:
        ValueError: an unknown rule.
    """
    unknown = [name for name in rules if name not in RULES]
    if unknown:
        raise ValueError(f"Expected rules among {', '.join(RULES)}, but got {', '.join(unknown)}.")
    problem = Problem.of(question, answer, seed)
    found: dict[str, str] = {}
    for name in problem.rng.sample(list(rules), len(rules)):
        if len(found) == count:
            break
        text = RULES[name](problem)
        if text is not None and text not in (question, *found):
            found[text] = name
    return [Rewritten(rule, text) for text, rule in found.items()]
