"""Tokens and money: an estimate before anything is asked, and the account afterwards."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from .calls import ApiCall, Reply, Usage

CHARACTERS_PER_TOKEN = 3.5
"""About 4 in English, fewer in LaTeX."""


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Prices of a model, per million tokens, in any currency."""

    prompt: float
    completion: float

    def cost(self, usage: Usage) -> float:
        """Money for so many tokens."""
        return (usage.prompt_tokens * self.prompt + usage.completion_tokens * self.completion) / 1e6


def estimate(calls: Iterable[ApiCall], prices: Mapping[str, Prices], answered: Container[str]) -> pd.DataFrame:
    """The expected cost, as in `summed`; equal calls are counted once, those whose keys are `answered` not at all.

    `cost` is for completions of the expected length, `at most` for such that run to their limit of tokens.
    """
    rows = []
    for call in {call.key: call for call in calls if call.key not in answered}.values():
        limit = call.parameters.get("max_completion_tokens") or call.parameters.get("max_tokens")
        most = int(limit or call.expected_tokens)
        prompt = round((len(call.system) + len(call.user)) / CHARACTERS_PER_TOKEN)
        rows.append((call, Usage(prompt, min(call.expected_tokens, most)), Usage(prompt, most)))
    return summed(rows, prices)


def account(answered: Iterable[tuple[ApiCall, Reply]], prices: Mapping[str, Prices]) -> pd.DataFrame:
    """The cost of replies, those of earlier sessions included: a table as in `summed`."""
    return summed([(call, reply.usage, reply.usage) for call, reply in answered], prices)


def summed(rows: Iterable[tuple[ApiCall, Usage, Usage]], prices: Mapping[str, Prices]) -> pd.DataFrame:
    """Per purpose and model the sums over calls, of the usual usage, its cost and that of the largest, `at most`.

    A cost is NaN where no price is known.
    """
    columns = ["purpose", "model", "calls", "prompt tokens", "completion tokens", "cost", "at most"]
    content = []
    for call, usual, most in rows:
        price = prices.get(call.model)
        costs = [price and price.cost(usage) for usage in (usual, most)]
        content.append((call.purpose, call.model, 1, *usual, *costs))
    frame = pd.DataFrame(content, columns=columns).astype({"cost": float, "at most": float})
    return frame.groupby(["purpose", "model"], sort=False, as_index=False).sum(min_count=1)
