"""The whole way from questions to checked rephrasings; what it costs, before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..types import QuestionGroup
from .candidates import Reviewed
from .costs import Line, Prices, account, estimate
from .opinions import Opinion
from .rephrasers import Rephraser
from .requests import Answer, Answers, Completer, Request
from .verdicts import Check


def same_text(group: QuestionGroup) -> str:
    """The question with its white space normalised."""
    return " ".join(group.question.split())


def distinct(groups: Iterable[QuestionGroup]) -> dict[str, QuestionGroup]:
    """Text → the first question that has it, in order.

    >>> groups = [QuestionGroup(name, text, (), ("1",)) for name, text in (("a", "1 + 1?"), ("b", "1  + 1?"))]
    >>> [group.id for group in distinct(groups).values()]
    ['a']
    """
    found: dict[str, QuestionGroup] = {}
    for group in groups:
        found.setdefault(same_text(group), group)
    return found


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What `generate` made."""

    reviewed: list[Reviewed]
    """Every question, in order."""
    account: list[Line]
    """What the answers cost, those of earlier sessions included."""
    failures: Mapping[str, str]
    """Requests without an answer; the same command asks them again."""


@dataclass
class Recorder:
    """A completer that remembers what was asked of another one, for the account."""

    completer: Completer
    answers: dict[str, tuple[str, Answer]] = field(default_factory=dict)
    """key → (model that was asked, answer)."""
    failures: dict[str, str] = field(default_factory=dict)
    """key → why there is no answer."""

    async def complete(self, requests: Sequence[Request]) -> Answers:
        """As the other one does."""
        found = await self.completer.complete(requests)
        models = {request.key: request.model for request in requests}
        self.answers |= {key: (models[key], answer) for key, answer in found.answers.items()}
        self.failures |= found.failures
        return found

    def outcome(self, reviewed: list[Reviewed], prices: Mapping[str, Prices]) -> Outcome:
        """The account of all that was asked."""
        lines = account(self.answers.values(), prices)
        return Outcome(reviewed=reviewed, account=lines, failures=self.failures)


async def generate(
    groups: Sequence[QuestionGroup],
    rephraser: Rephraser,
    checks: Mapping[str, Check],
    opinions: Iterable[Opinion],
    completer: Completer,
    prices: Mapping[str, Prices],
) -> Outcome:
    """Propose rephrasings, check their text, then ask judge and solver about those that passed.

    Questions that read the same, white space aside, share their rephrasings, which are made for the first of them:
    `datamodules.sources.rephrased` joins rephrasings to questions by their text.

    Args:
        groups: Questions.
        rephraser: Who proposes.
        checks: Name → check of the text.
        opinions: Judge and solver, in the order in which they are asked.
        completer: Who answers requests.
        prices: Model → prices, for the account.
    """
    recorder = Recorder(completer)
    first = distinct(groups)
    reviewed = await rephraser.propose(list(first.values()), checks, recorder)
    await consult(reviewed, opinions, recorder)
    made = dict(zip(first, reviewed, strict=True))
    copies = [replace(made[same_text(group)], group=group) for group in groups]
    return recorder.outcome(copies, prices)


async def consult(reviewed: Sequence[Reviewed], opinions: Iterable[Opinion], completer: Completer) -> None:
    """Ask judge and solver about the candidates that no check has failed; their earlier verdicts are replaced."""
    for opinion in opinions:
        for item in reviewed:
            for candidate in item.candidates:
                candidate.verdicts = [verdict for verdict in candidate.verdicts if verdict.check != opinion.name]
        await opinion.add(reviewed, completer)


def plan(
    groups: Sequence[QuestionGroup],
    rephraser: Rephraser,
    opinions: Iterable[Opinion],
    answered: Mapping[str, Answer],
    prices: Mapping[str, Prices],
    *,
    characters_per_token: float = 3.5,
    batch: bool = False,
) -> list[Line]:
    """The estimate of `generate`.

    Judge and solver are counted as if every rephrasing that is asked for came, passed the checks and was as long as its
    question; repetitions after refused rephrasings are not counted.
    """
    groups = list(distinct(groups).values())
    requests = rephraser.requests(groups)
    for opinion in opinions:
        requests += opinion.requests(groups, rephraser.count)
    return estimate(requests, prices, answered, characters_per_token, batch)
