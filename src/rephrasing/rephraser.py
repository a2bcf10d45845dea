"""Rephrasings that a model proposes, checks of their text, and the judge."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ..datamodules.sources.base import plain
from ..foreign import ForeignDataError, Message, read_json
from ..types import QuestionGroup
from .calls import ApiCall, Reply
from .candidates import Candidate, Checks, Pair, Reviewed, Verdict, accepted
from .client import Client

_RULES = """\
Whatever you change, it must stay the same problem:
- every number, unit, formula and condition is kept, none is added, and figures given as code are copied unchanged;
- the same thing is asked for, in the same form (fraction, decimal, unit, number of digits, choice);
- a reader who sees only your version can solve it;
- nothing of the solution is given away: no intermediate result, no hint, no answer.
Do not solve the problem and do not comment on your work. Keep LaTeX as LaTeX.
"""
_FORM = """\
Write each rephrasing between the tags <rephrasing> and </rephrasing>, and nothing outside of the tags."""
_COMPARE = """\
You compare two statements of a mathematical problem. They are equivalent when a solver who has only one of them must
arrive at the same final answer, written in the same form, as one who has only the other.

Check each of these: the same numbers, units and formulas; the same conditions, none added, none lost; the same unknown
is asked for, in the same form; no roles are swapped; no part of the solution is given away. Different wording, order,
format and names of people or variables do not matter. Do not solve the problem.

Give your reason in one sentence, then a last line: EQUIVALENT: yes, or EQUIVALENT: no."""

_OPENING = r"<rephrasing(?:[\s_]?\d{1,3}|\s[^<>]{1,80})?>"
_TAGGED = re.compile(
    rf"{_OPENING}((?:(?!{_OPENING}).)*?)</rephrasing(?:[\s_]?\d{{1,3}})?>", re.IGNORECASE | re.DOTALL
)
_MENTION = re.compile(r"\W*(?:and|or|to|through|your text|text|rephrasing)?\W*", re.IGNORECASE)
"""Text between the tags if a reply mentions the tags: "between <rephrasing> and </rephrasing>"."""
_LONGEST_REASON = 300
"""Maximum number of characters of a judge's reason to keep."""


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """Instruction to rephrase or reformulate questions; `configs/rephraser` has TA-GRPO's and others."""

    count: int
    """Number of rephrasings wanted per question."""
    task: str
    """Text of the instruction, with examples."""
    rules: bool = True
    """Whether to append rules about what must not change; the form of the reply is always requested."""
    kind: str = "wording"
    """Kind of change to the question, for `data.kinds`."""
    unchecked: Sequence[str] = ()
    """Checks to leave out, since this kind can't pass them, such as `numbers_kept`; also `judge`."""

    def system(self, count: int) -> str:
        """Return the system prompt that requests `count` rephrasings of the following question."""
        wanted = "one rephrasing" if count == 1 else f"{count} rephrasings, each different from the others,"
        return f"{self.task.strip()}\n\n{_RULES * self.rules}{_FORM}\n\nWrite {wanted} of the question that follows."


class Rephraser(Protocol):
    """Source of proposed rephrasings of questions."""

    @property
    def count(self) -> int:
        """Number of rephrasings wanted per question."""

    def calls(self, groups: Sequence[QuestionGroup]) -> list[ApiCall]:
        """Return the calls that are made whatever the replies are; empty if the rephraser uses no model."""

    async def propose(
        self, groups: Sequence[QuestionGroup], checks: Checks, client: Client
    ) -> list[Reviewed]:
        """Return all candidates of each question, with the verdicts of `checks`."""


@dataclass(frozen=True, kw_only=True)
class ModelRephraser:
    """Rephraser that uses a chat model.

    Each instruction requests its number of rephrasings in one call. If fewer pass the checks, the instruction
    is repeated for the missing rephrasings.
    """

    model: str
    """Name of the model on the server."""
    instructions: Mapping[str, Instruction]
    """Name → instruction."""
    attempts: int = 2
    """Maximum number of calls per question and instruction."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters, passed to the server."""
    seed: int | None = None
    """Seed that is sent with each call, plus the number of the attempt; None sends no seed."""

    def __post_init__(self) -> None:
        counts = {name: instruction.count for name, instruction in self.instructions.items()}
        if min([self.attempts, *counts.values()]) < 1 or not counts:
            raise ValueError(
                f"Expected counts of rephrasings and attempts ≥ 1, but got {counts} and {self.attempts}."
            )

    @property
    def count(self) -> int:
        """Number of rephrasings wanted per question."""
        return sum(instruction.count for instruction in self.instructions.values())

    def calls(self, groups: Sequence[QuestionGroup]) -> list[ApiCall]:
        """Return the first call of every question and instruction."""
        return [self._call(group, name, i.count) for group in groups for name, i in self.instructions.items()]

    async def propose(
        self, groups: Sequence[QuestionGroup], checks: Checks, client: Client
    ) -> list[Reviewed]:
        """Request, parse and check rephrasings; request missing rephrasings again."""
        reviewed = [Reviewed(group) for group in groups]
        wanted = [(item, name, i.count) for item in reviewed for name, i in self.instructions.items()]
        for attempt in range(self.attempts):
            calls = [self._call(item.group, name, count, attempt) for item, name, count in wanted]
            replies = await client.complete(calls)
            asked, wanted = wanted, []
            for (item, name, count), call, reply in zip(asked, calls, replies, strict=True):
                texts = read_rephrasings(reply.text)[:count]
                made = [_candidate(text, name, self.instructions[name], call, reply) for text in texts]
                missing = count - sum([item.add(candidate, checks) for candidate in made])
                if missing and attempt + 1 < self.attempts and call.key not in client.failures:
                    wanted.append((item, name, missing))
                elif missing:
                    reason = reply.fault or (
                        "refused by the checks" if texts else "no <rephrasing> in the reply"
                    )
                    item.shortfall += f"{'; ' if item.shortfall else ''}{name} lacks {missing}: {reason}"
        return reviewed

    def _call(self, group: QuestionGroup, name: str, count: int, attempt: int = 0) -> ApiCall:
        return ApiCall(
            purpose="rephrase",
            model=self.model,
            system=self.instructions[name].system(count),
            user=f"Question: {group.question}",
            parameters={**self.parameters, **({} if self.seed is None else {"seed": self.seed + attempt})},
            attempt=attempt,
            expected_tokens=count * (len(group.question) // 3 + 12),  # 12 for the tags
        )


def _candidate(text: str, name: str, instruction: Instruction, call: ApiCall, reply: Reply) -> Candidate:
    made: dict[str, Any] = {"model": reply.model or call.model, "instruction": name, "time": reply.time}
    if instruction.kind != "wording" or instruction.unchecked:
        made |= {"kind": instruction.kind, "unchecked": list(instruction.unchecked)}
    return Candidate(text, {**made, "key": call.key, "seed": call.parameters.get("seed")})


def read_rephrasings(text: str) -> list[str]:
    """Return the stripped texts between the tags, without empty texts and mentions of the tags.

    >>> read_rephrasings("Sure! <rephrasing>Add 1 to 1.</rephrasing>"), read_rephrasings("Add 1 to 1.")
    (['Add 1 to 1.'], [])
    """
    found = [inside.strip() for inside in _TAGGED.findall(text)]
    return [inside for inside in found if inside and not _MENTION.fullmatch(inside)]


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Model that compares each rephrasing with its original, without seeing the reference answer."""

    model: str  # name of the model on the server
    parameters: Mapping[str, Any] = field(default_factory=dict)  # for the server: temperature, max_tokens, …

    def call(self, pair: Pair) -> ApiCall:
        """Return the call that asks the judge about one pair."""
        return ApiCall(
            purpose="judge", model=self.model, system=_COMPARE, parameters=self.parameters, expected_tokens=60,
            user=f"First statement:\n{pair.question}\n\nSecond statement:\n{pair.rephrasing}",
        )  # fmt: skip

    async def review(self, reviewed: Sequence[Reviewed], client: Client) -> None:
        """Judge every candidate that no text check refused, and drop earlier verdicts of the judge.

        The verdict is undecided (None), and the candidate not accepted, if the judge does not reply or is
        unclear. A text that spells a verdict is refused without a call, since the judge may quote it.
        """
        places = []
        for item in reviewed:
            for candidate in item.candidates:
                candidate.verdicts = [verdict for verdict in candidate.verdicts if verdict.check != "judge"]
                if not accepted(candidate.verdicts) or "judge" in candidate.unchecked:
                    continue
                if _SPELLED_VERDICT.search(f"{item.group.question}\n{candidate.text}"):
                    candidate.verdicts.append(Verdict("judge", False, "not asked: the texts spell a verdict"))
                else:
                    places.append((candidate, self.call(item.pair(candidate))))
        replies = await client.complete([call for _, call in places])
        for (candidate, _), reply in zip(places, replies, strict=True):
            equivalent, reason = (
                read_judgement(reply.text) if reply.text else (None, f"no reply: {reply.fault}")
            )
            candidate.verdicts.append(Verdict("judge", equivalent, reason or "no reason given"))


_LAST_LINE = re.compile(r"[\s*_#-]*equivalent[\s*_]*:[\s*_]*(yes|true|no|false)[\s*_.!]*", re.IGNORECASE)
"""Line that the judge is instructed to write, with the emphasis that models put around it."""
_SPELLED_VERDICT = re.compile(r"equivalent[\W_]{0,8}:[\W_]{0,8}(?:yes|true)", re.IGNORECASE)
_CONTRADICTION = re.compile(
    r"\bequivalent[\s*_\"'`]{0,4}(?::|=|\bis\b)[\s*_\"'`]{0,4}(?:no|false)\b|\b(?:in|non-?)equivalent"
    r"|(?:\b(?:not|never|no longer|hardly)|n[’']t)(?:[\s*_]{1,4}\w{1,20}){0,3}[\s*_]{1,4}equivalent"
    r"|\bequivalent\b[\s,;*_]{1,4}(?:(?:but|and|only)\s){0,2}(?:if|unless|except|provided|when)\b",
    re.IGNORECASE,
)
"""Denial of equivalence in the reason, which makes a reply unclear."""
_CLAUSE_END = re.compile(
    r"[,;:!?\n]|\.(?!\d)|\b(?:and|but|so|while|whereas|hence|thus|therefore|which|making)\b", re.IGNORECASE
)
_NEGATION = re.compile(
    r"\b(?:no|not|none|nothing|neither|nor|never|cannot|without)\b|n[’']t\b", re.IGNORECASE
)
_DOUBT = re.compile(
    r"\b(?:would|could|might|may|if|unless|fails?|failed|far|nowhere|wrong|only|almost|nearly|part\w*)\b",
    re.IGNORECASE,
)
_NOT_SAME = re.compile(
    r"(?:\b(?:not|never|no longer|hardly)|n[’']t)(?:\s{1,4}[\w’']{1,20}){0,3}"
    r"\s{1,4}(?:same|identical|match(?:es)?|agree|preserved?|kept|keep)\b",
    re.IGNORECASE,
)
_DIFFERENCE = re.compile(
    r"\b(?:differ(?:s|ent|ence|ences)?|chang(?:e|es|ed)|alter(?:s|ed)?|los(?:t|es)|lacks?|miss(?:es|ed|ing)?"
    r"|omit(?:s|ted)?|drop(?:s|ped)?|swap(?:s|ped)?|add(?:s|ed)|gives?\saway|given\saway|unsolvable|disagree)\b",
    re.IGNORECASE,
)
_HARMLESS = re.compile(
    r"\b(?:wording|words?|worded|names?|named|order|format|formatting|style|phras\w+|people|letters?|variables?|story"
    r"|setting|sentences?|context|presentation|only|just|merely|superficial\w*|irrelevant)\b",
    re.IGNORECASE,
)
"""Permitted differences between equivalent problems."""
_HEADING = re.compile(
    r"\W*(?:(?:my|the|so|final|last|overall)\W+){0,3}(?:verdict|conclusion|answer|judge?ment|decision|result|line)\W*",
    re.IGNORECASE,
)


class _Judgement(Message):
    equivalent: bool
    reason: str = ""


def read_judgement(text: str) -> tuple[bool | None, str]:
    r"""Parse a judge's verdict and reason.

    The last line must be `EQUIVALENT: yes` or `EQUIVALENT: no` and nothing else, or the whole reply a JSON
    object with `equivalent` and `reason`; otherwise the verdict is unclear. A `yes` is unclear, too, if it
    may be a quotation, or if the reason denies or doubts the equivalence, or names a difference.

    Returns:
        Whether the judge calls two problems equivalent, None if unclear; and the reason, or the beginning of
        the text if the verdict is unclear.

    >>> read_judgement("Only the order differs.\nEQUIVALENT: yes")
    (True, 'Only the order differs.')
    >>> read_judgement("NOT EQUIVALENT")[0] is read_judgement("EQUIVALENT: yes, but")[0] is None
    True
    """
    equivalent, before = _last_word(text)
    if equivalent is None or (equivalent and _is_doubtful(before)):
        return None, text.strip()[:_LONGEST_REASON]
    return equivalent, before.strip(" \n*")[:_LONGEST_REASON]


def _last_word(text: str) -> tuple[bool | None, str]:
    """Return the verdict in the last line with the text before it, or a JSON object's verdict and reason."""
    if text.lstrip().startswith("{") and text.count('"equivalent"') == 1:
        try:
            said = read_json(_Judgement, text, source="the judge's reply", remedy="")
        except ForeignDataError:
            return None, text
        return said.equivalent, said.reason
    lines = [line for line in text.splitlines() if line.strip()]
    found = _LAST_LINE.fullmatch(lines[-1]) if lines else None
    if found is None:
        return None, text
    return found[1].lower() in ("yes", "true"), "\n".join(lines[:-1])


def _is_doubtful(before: str) -> bool:
    """Check whether the text before a `yes` denies the equivalence, or introduces a quotation."""
    lines = before.split("\n")
    fenced = before.count("```") % 2 == 1
    quoted = any(line.count('"') % 2 == 1 or line.count("“") > line.count("”") for line in lines)
    introduced = lines[-1].rstrip(" *_").endswith(":") and not _HEADING.fullmatch(lines[-1])
    denied = _CONTRADICTION.search(before) is not None or any(map(_denies, _CLAUSE_END.split(before)))
    return fenced or quoted or introduced or denied


def _denies(clause: str) -> bool:
    """Check whether a clause denies or doubts that two problems are equivalent."""
    if clause.strip(" *_").casefold() == "no":
        return True
    negated = _NEGATION.search(clause) is not None
    if "equivalent" in clause.casefold():
        return negated or _DOUBT.search(clause) is not None
    if _DIFFERENCE.search(clause):
        return not negated and _HARMLESS.search(clause) is None
    return _NOT_SAME.search(clause) is not None


async def rephrase(
    groups: Sequence[QuestionGroup], rephraser: Rephraser, checks: Checks, judge: Judge | None, client: Client
) -> list[Reviewed]:
    """Propose rephrasings, check their text, and judge those that passed. Return all questions, in order.

    Questions with the same `plain` text share their rephrasings, since `with_rephrasings` joins by this text.
    """
    reviewed = await rephraser.propose(distinct(groups), checks, client)
    if judge is not None:
        await judge.review(reviewed, client)
    made = {plain(item.group.question): item for item in reviewed}
    return [replace(made[plain(group.question)], group=group) for group in groups]


def planned_calls(
    groups: Sequence[QuestionGroup], rephraser: Rephraser, judge: Judge | None
) -> list[ApiCall]:
    """Return the calls that `rephrase` makes if all rephrasings pass and are as long as their questions."""
    questions = distinct(groups)
    pairs = [Pair(q.question, f"{n} {q.question}") for q in questions for n in range(rephraser.count)]
    return rephraser.calls(questions) + ([judge.call(pair) for pair in pairs] if judge else [])


def distinct(groups: Sequence[QuestionGroup]) -> list[QuestionGroup]:
    """Return the first question of each `plain` text, in order."""
    found: dict[str, QuestionGroup] = {}
    for group in groups:
        found.setdefault(plain(group.question), group)
    return list(found.values())
