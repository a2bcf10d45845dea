"""What models say about rephrasings that passed the checks of their text: a judge's verdict and a solver's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..types import QuestionGroup
from .candidates import Candidate, Reviewed
from .judging import Verifier, judge_request, judge_verdict, majority, solver_request, solver_verdict
from .requests import Answers, Completer, Request
from .verdicts import Pair, Verdict, accepted


class Opinion(Protocol):
    """Adds a verdict to every candidate that passed so far."""

    name: str
    """Of its verdicts."""
    model: str
    """That it asks."""

    def requests(self, groups: Sequence[QuestionGroup], rephrasings: int) -> list[Request]:
        """What it will ask at most, each rephrasing being about as long as its question; for the estimate."""
        ...

    async def add(self, reviewed: Sequence[Reviewed], completer: Completer) -> int:
        """Ask and add the verdicts; return how many requests got no answer."""
        ...


class Judge:
    """A model that compares each rephrasing with its original.

    Args:
        model: Name of the judge on its server.
        parameters: Sampling parameters.
    """

    name = "judge"

    def __init__(self, model: str, parameters: Mapping[str, Any] | None = None) -> None:
        self.model = model
        self.parameters = dict(parameters or {})

    def requests(self, groups: Sequence[QuestionGroup], rephrasings: int) -> list[Request]:
        """One request per rephrasing."""
        return [
            self._request(group.id, Pair(group.question, f"{number} {group.question}"))
            for group in groups
            for number in range(rephrasings)
        ]

    async def add(self, reviewed: Sequence[Reviewed], completer: Completer) -> int:
        """Ask about every candidate that passed so far."""
        asked = [(c, self._request(item.group.id, item.pair(c))) for item, c in passed_so_far(reviewed)]
        answers = await completer.complete([request for _, request in asked])
        for candidate, request in asked:
            if request.key in answers.answers:
                candidate.verdicts.append(judge_verdict(answers.answers[request.key].texts[0]))
            else:
                candidate.verdicts.append(Verdict("judge", None, f"no answer: {answers.failures[request.key]}"))
        return len(answers.failures)

    def _request(self, question: str, pair: Pair) -> Request:
        return judge_request(question, pair, self.model, self.parameters)


class Solver:
    """A model that solves each rephrasing several times; the majority answer has to be the right one.

    Args:
        model: Name of the solver on its server.
        verifier: As in `tagrpo.rewards`: finds final answers and compares them with the reference.
        samples: Solutions per statement.
        least: Share of the solutions that a majority must have.
        parameters: Sampling parameters; a temperature above 0, or the solutions are all the same.
        expected_tokens: About how long a solution is, for the estimate.
    """

    name = "solver"

    def __init__(
        self,
        model: str,
        verifier: Verifier,
        samples: int = 8,
        least: float = 0.5,
        parameters: Mapping[str, Any] | None = None,
        expected_tokens: int = 600,
    ) -> None:
        if samples < 1 or not 0 <= least <= 1:
            raise ValueError(f"Expected samples ≥ 1 and least in 0..1, but got {samples} and {least}.")
        self.model = model
        self.verifier = verifier
        self.samples = samples
        self.least = least
        self.parameters = dict(parameters or {})
        self.expected_tokens = expected_tokens

    def requests(self, groups: Sequence[QuestionGroup], rephrasings: int) -> list[Request]:
        """One request for each question and each rephrasing."""
        texts = [(g.id, f"{n} {g.question}" if n else g.question) for g in groups for n in range(rephrasings + 1)]
        return [self._request(*text) for text in texts]

    async def add(self, reviewed: Sequence[Reviewed], completer: Completer) -> int:
        """Solve the originals and every candidate that passed so far."""
        asked = [(item, c, self._request(item.group.id, c.text)) for item, c in passed_so_far(reviewed)]
        originals = {item.group.id: self._request(item.group.id, item.group.question) for item, _, _ in asked}
        answers = await completer.complete([*originals.values(), *(request for _, _, request in asked)])
        for item, candidate, request in asked:
            candidate.verdicts.append(self._verdict(item, originals[item.group.id], request, answers))
        return len(answers.failures)

    def _request(self, question: str, problem: str) -> Request:
        return solver_request(question, problem, self.model, self.samples, self.parameters, self.expected_tokens)

    def _verdict(self, item: Reviewed, original: Request, request: Request, answers: Answers) -> Verdict:
        for key in (original.key, request.key):
            if key in answers.failures:
                return Verdict("solver", None, f"no answer: {answers.failures[key]}")
        reference = item.group.answer
        before, after = (
            majority(answers.answers[key].texts, reference, self.verifier) for key in (original.key, request.key)
        )
        return solver_verdict(before, after, reference, self.least)


def passed_so_far(reviewed: Sequence[Reviewed]) -> list[tuple[Reviewed, Candidate]]:
    """The candidates that no check has failed: only they are worth a model's time."""
    return [(item, c) for item in reviewed for c in item.candidates if accepted(c.verdicts)]
