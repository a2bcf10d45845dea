"""Tokens and money: an estimate before the first call, and the account afterwards."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from math import nan
from typing import NamedTuple

import pandas as pd

from .calls import ApiCall, Usage

CHARACTERS_PER_TOKEN = 3.5
"""About 4 in English, fewer in LaTeX."""


class Prices(NamedTuple):
    """Prices of a model, per million tokens, in any currency."""

    prompt: float
    completion: float


def expected(calls: Iterable[ApiCall], answered: Container[str]) -> list[tuple[ApiCall, Usage]]:
    """Calls with their expected usage; equal calls count once, those whose keys are `answered` not at all."""
    distinct = {call.key: call for call in calls if call.key not in answered}.values()
    tokens = [round((len(call.system) + len(call.user)) / CHARACTERS_PER_TOKEN) for call in distinct]
    return [(call, Usage(prompt, call.expected_tokens)) for call, prompt in zip(distinct, tokens, strict=True)]


def costs(usages: Iterable[tuple[ApiCall, Usage]], prices: Mapping[str, Prices]) -> pd.DataFrame:
    """Calls, tokens and cost, summed per purpose and model; a cost is NaN where no price is known."""
    rows = []
    for call, usage in usages:
        price = prices.get(call.model, Prices(nan, nan))
        cost = (usage.prompt_tokens * price.prompt + usage.completion_tokens * price.completion) / 1e6
        rows.append((call.purpose, call.model, 1, *usage, cost))
    columns = ["purpose", "model", "calls", "prompt tokens", "completion tokens", "cost"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.groupby(["purpose", "model"], sort=False, as_index=False).sum(min_count=1)
