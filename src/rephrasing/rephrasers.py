"""Who proposes rephrasings: a model under instructions, or the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from ..types import QuestionGroup
from . import rules
from .candidates import Candidate, Provenance, Reviewed
from .instructions import INSTRUCTIONS, PLAIN_FORMAT, instruction, schema
from .replies import read_rephrasings
from .requests import Answer, Completer, Request, now
from .verdicts import Check, accepted, names, review

WRAPPING_TOKENS = 12
"""Of a completion, beside the rephrasings themselves."""


class Rephraser(Protocol):
    """Proposes rephrasings of questions."""

    count: int
    """Rephrasings wanted per question."""

    def requests(self, groups: Sequence[QuestionGroup]) -> list[Request]:
        """What it will surely ask a model; nothing for one that asks none."""
        ...

    async def propose(
        self, groups: Sequence[QuestionGroup], checks: Mapping[str, Check], completer: Completer
    ) -> list[Reviewed]:
        """All candidates with the verdicts of `checks`, question by question."""
        ...


class ModelRephraser:
    """Asks a chat model.

    Each instruction asks for its number of rephrasings in one request. Where the answer holds fewer that pass the
    checks, the instruction is repeated for those that lack, up to `attempts` times in all.

    Args:
        model: Name of the model on its server.
        instructions: Name of an instruction (`instructions.INSTRUCTIONS`) → rephrasings wanted.
        attempts: Requests per question and instruction at most.
        parameters: Sampling parameters, handed to the server.
        seed: Sent with each request, plus the number of the attempt; None sends none.

    Raises:
        ValueError: an unknown instruction, or a count below 1.
    """

    def __init__(
        self,
        model: str,
        instructions: Mapping[str, int],
        attempts: int = 2,
        parameters: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> None:
        self.instructions = {name: count for name, count in instructions.items() if count}
        for name, count in self.instructions.items():
            instruction(name)
            if count < 1:
                raise ValueError(f"Expected a positive number of rephrasings by `{name}`, but got {count}.")
        if not self.instructions or attempts < 1:
            raise ValueError(f"Expected instructions and attempts ≥ 1, but got {instructions} and {attempts}.")
        self.count = sum(self.instructions.values())
        self.model = model
        self.attempts = attempts
        self.parameters = dict(parameters or {})
        self.seed = seed

    def requests(self, groups: Sequence[QuestionGroup]) -> list[Request]:
        """The first request of every question and instruction."""
        return [self._request(g, name, count, 0) for g in groups for name, count in self.instructions.items()]

    async def propose(
        self, groups: Sequence[QuestionGroup], checks: Mapping[str, Check], completer: Completer
    ) -> list[Reviewed]:
        """Ask, read, check; ask again for what lacks."""
        reviewed = {group.id: Reviewed(group) for group in groups}
        wanted = {(group.id, name): count for group in groups for name, count in self.instructions.items()}
        failures: dict[tuple[str, str], str] = {}
        for attempt in range(self.attempts):
            asked = {
                place: self._request(reviewed[place[0]].group, place[1], count, attempt)
                for place, count in wanted.items()
                if count and place not in failures
            }
            answers = await completer.complete(list(asked.values()))
            for (question, name), request in asked.items():
                if request.key in answers.answers:
                    passed = self._read(reviewed[question], name, request, answers.answers[request.key], checks)
                    wanted[question, name] -= min(passed, wanted[question, name])
                else:
                    failures[question, name] = answers.failures[request.key]
        for (question, name), count in wanted.items():
            if count:
                reason = failures.get((question, name), "refused by the checks, or the answer could not be read")
                item = reviewed[question]
                item.shortfall = "; ".join(filter(None, (item.shortfall, f"{name} lacks {count}: {reason}")))
        return list(reviewed.values())

    def _request(self, group: QuestionGroup, name: str, count: int, attempt: int) -> Request:
        seed = {} if self.seed is None else {"seed": self.seed + attempt}
        return Request(
            purpose="rephrase",
            question=group.id,
            model=self.model,
            system=INSTRUCTIONS[name].system(count),
            user=f"Question: {group.question}",
            parameters={**self.parameters, **seed},
            attempt=attempt,
            schema=schema(count),
            plain_format=PLAIN_FORMAT,
            expected_tokens=count * (len(group.question) // 3 + WRAPPING_TOKENS),
        )

    def _read(
        self, reviewed: Reviewed, name: str, request: Request, answer: Answer, checks: Mapping[str, Check]
    ) -> int:
        """Add what the answer holds, as far as it was asked for; return how many passed the checks."""
        texts = read_rephrasings(answer.texts[0])[: request.schema["properties"]["rephrasings"]["maxItems"]]  # type: ignore[index]
        provenance = Provenance(
            model=answer.model or request.model,
            instruction=name,
            time=answer.time,
            request_id=answer.request_id,
            request=request.key,
            seed=request.parameters.get("seed"),
            usage=asdict(answer.usage),
            shared_by=len(texts),
            renames=INSTRUCTIONS[name].renames,
        )
        return sum(add_candidate(reviewed, Candidate(text, provenance), checks) for text in texts)


class RuleRephraser:
    """Applies the rules of `rules`, without any model; the same seed gives the same rephrasings.

    Args:
        count: Rephrasings wanted per question. Many questions get fewer: `shortfall` says so.
        rules: Names of the rules to use; None for all.
        seed: Of the choices between rules and between names.
    """

    def __init__(self, count: int = 3, rules: Sequence[str] | None = None, seed: int = 0) -> None:
        if count < 1:
            raise ValueError(f"Expected count to be at least 1, but got {count}.")
        self.count = count
        self.rules = rules_of(rules)
        self.seed = seed

    def requests(self, groups: Sequence[QuestionGroup]) -> list[Request]:  # noqa: ARG002 (of the protocol)
        """None."""
        return []

    async def propose(
        self,
        groups: Sequence[QuestionGroup],
        checks: Mapping[str, Check],
        completer: Completer,  # noqa: ARG002 (of the protocol)
    ) -> list[Reviewed]:
        """Apply every rule, keep the first that pass the checks."""
        return [self._propose(group, checks) for group in groups]

    def _propose(self, group: QuestionGroup, checks: Mapping[str, Check]) -> Reviewed:
        reviewed = Reviewed(group)
        passed = 0
        found = rules.rephrase(
            group.question, group.answer, len(self.rules), seed=f"{self.seed}/{group.question}", rules=self.rules
        )
        for rewritten in found:
            if passed == self.count:
                break
            renames = rewritten.rule == "rename_variables"
            provenance = Provenance(
                model="rules", instruction=rewritten.rule, time=now(), seed=self.seed, renames=renames
            )
            passed += add_candidate(reviewed, Candidate(rewritten.text, provenance), checks)
        if passed < self.count:
            reviewed.shortfall = (
                f"{len(found)} of {len(self.rules)} rules apply safely, {passed} results pass the checks"
            )
        return reviewed


def rules_of(chosen: Sequence[str] | None) -> list[str]:
    """The names, checked.

    Raises:
        ValueError: an unknown rule.
    """
    unknown = set(chosen or ()) - set(rules.RULES)
    if unknown:
        raise ValueError(f"Expected rules among {', '.join(rules.RULES)}, but got {', '.join(sorted(unknown))}.")
    return list(rules.RULES if chosen is None else chosen)


def add_candidate(reviewed: Reviewed, candidate: Candidate, checks: Mapping[str, Check]) -> bool:
    """Check a candidate against the question and those accepted before, and add it; return whether it passed."""
    others = [other.text for other in reviewed.candidates if not names(other.verdicts)]
    candidate.verdicts = review(reviewed.pair(candidate, others), checks)
    reviewed.candidates.append(candidate)
    return accepted(candidate.verdicts)
