"""The whole way from questions to checked rephrasings; what it costs, before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..types import QuestionGroup
from .candidates import Reviewed
from .costs import Line, Prices, account, estimate
from .opinions import Opinion
from .rephrasers import Rephraser
from .requests import Answer, Answers, Completer, Request
from .verdicts import Check


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


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What `generate` made."""

    reviewed: list[Reviewed]
    """Every question, in order."""
    account: list[Line]
    """What the answers cost, those of earlier sessions included."""
    failures: Mapping[str, str]
    """Requests without an answer; the same command asks them again."""


async def generate(
    groups: Sequence[QuestionGroup],
    rephraser: Rephraser,
    checks: Mapping[str, Check],
    opinions: Iterable[Opinion],
    completer: Completer,
    prices: Mapping[str, Prices],
) -> Outcome:
    """Propose rephrasings, check their text, then ask judge and solver about those that passed.

    Args:
        groups: Questions.
        rephraser: Who proposes.
        checks: Name → check of the text.
        opinions: Judge and solver, in the order in which they are asked.
        completer: Who answers requests.
        prices: Model → prices, for the account.
    """
    recorder = Recorder(completer)
    reviewed = await rephraser.propose(groups, checks, recorder)
    for opinion in opinions:
        await opinion.add(reviewed, recorder)
    return Outcome(reviewed=reviewed, account=account(recorder.answers.values(), prices), failures=recorder.failures)


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
    requests = rephraser.requests(groups)
    for opinion in opinions:
        requests += opinion.requests(groups, rephraser.count)
    return estimate(requests, prices, answered, characters_per_token, batch)
