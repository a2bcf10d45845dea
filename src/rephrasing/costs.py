"""Tokens and money: an estimate before anything is asked, and the account afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .requests import Answer, Request, Usage


@dataclass(frozen=True, kw_only=True)
class Prices:
    """What a model costs, per million tokens, in any currency."""

    prompt: float
    completion: float
    cached: float | None = None
    """Of prompt tokens in the server's cache; None for the same as others."""
    batch_factor: float = 0.5
    """What the batch interface costs, relative to these."""
    currency: str = "USD"

    def cost(self, usage: Usage, batch: bool = False) -> float:
        """Money for so many tokens.

        >>> Prices(prompt=10, completion=30).cost(Usage(prompt_tokens=500_000, completion_tokens=100_000))
        8.0
        """
        cached = self.prompt if self.cached is None else self.cached
        fresh = usage.prompt_tokens - usage.cached_tokens
        total = fresh * self.prompt + usage.cached_tokens * cached + usage.completion_tokens * self.completion
        return total / 1e6 * (self.batch_factor if batch else 1.0)


@dataclass(frozen=True, kw_only=True)
class Line:
    """Requests of one purpose to one model."""

    purpose: str
    model: str
    requests: int
    usage: Usage
    cost: float | None
    """None where no price is known."""
    most: float | None = None
    """Of an estimate: cost when every completion runs to its limit of tokens."""


def estimate(
    requests: Iterable[Request],
    prices: Mapping[str, Prices],
    answered: Mapping[str, Answer],
    characters_per_token: float = 3.5,
    batch: bool = False,
) -> list[Line]:
    """What the requests that have no answer yet will cost.

    Prompt tokens are characters over `characters_per_token`, which is measured on the answers that are there where
    there are at least twenty; completion tokens are what each request expects, or its limit where it expects nothing.

    Args:
        requests: All requests; equal keys are counted once.
        prices: Model → prices.
        answered: Answers that are there already; they cost nothing.
        characters_per_token: About 4 for English, less for LaTeX.
        batch: Through the batch interface.
    """
    wanted = {request.key: request for request in requests}
    measured = [(r, answered[key].usage.prompt_tokens) for key, r in wanted.items() if key in answered]
    if len(measured) >= 20 and any(tokens for _, tokens in measured):
        characters_per_token = sum(_characters(r) for r, _ in measured) / sum(tokens for _, tokens in measured)
    groups: dict[tuple[str, str], list[Request]] = {}
    for key, request in wanted.items():
        if key not in answered:
            groups.setdefault((request.purpose, request.model), []).append(request)
    lines = []
    for (purpose, model), members in groups.items():
        prompt = sum(round(_characters(r) / characters_per_token) for r in members)
        usual = Usage(prompt_tokens=prompt, completion_tokens=sum(r.samples * _expected(r) for r in members))
        most = Usage(prompt_tokens=prompt, completion_tokens=sum(r.samples * _limit(r) for r in members))
        price = prices.get(model)
        costs = [None if price is None else price.cost(usage, batch) for usage in (usual, most)]
        lines.append(
            Line(purpose=purpose, model=model, requests=len(members), usage=usual, cost=costs[0], most=costs[1])
        )
    return lines


def account(answers: Iterable[tuple[str, Answer]], prices: Mapping[str, Prices]) -> list[Line]:
    """What answers cost.

    Args:
        answers: (model that was asked, answer).
        prices: Model → prices.
    """
    groups: dict[tuple[str, str], list[Answer]] = {}
    for model, answer in answers:
        groups.setdefault((answer.purpose, model), []).append(answer)
    lines = []
    for (purpose, model), members in groups.items():
        usage = sum((answer.usage for answer in members), Usage())
        price = prices.get(model)
        cost = None if price is None else sum(price.cost(answer.usage, answer.batch) for answer in members)
        lines.append(Line(purpose=purpose, model=model, requests=len(members), usage=usage, cost=cost))
    return lines


def total(lines: Sequence[Line]) -> float | None:
    """The sum of the costs; None where one is unknown."""
    costs = [line.cost for line in lines]
    return None if None in costs else sum(cost for cost in costs if cost is not None)


def _characters(request: Request) -> int:
    system = request.body(structured=True)["messages"][0]["content"]
    return len(system) + len(request.user)


def _limit(request: Request) -> int:
    for name in ("max_completion_tokens", "max_tokens"):
        if request.parameters.get(name):
            return int(request.parameters[name])
    return max(request.expected_tokens, 1)


def _expected(request: Request) -> int:
    return min(request.expected_tokens or _limit(request), _limit(request))
