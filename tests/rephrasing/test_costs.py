from __future__ import annotations

import math

import pytest

from tagrpo.rephrasing.calls import ApiCall, Reply, Usage
from tagrpo.rephrasing.costs import Prices, account, estimate

PRICES = {"m": Prices(prompt=10.0, completion=30.0)}


def call(user="x" * 70, **facts):
    known = {"purpose": "rephrase", "model": "m", "system": "", "parameters": {"max_tokens": 100}}
    return ApiCall(**{**known, "user": user, "expected_tokens": 40, **facts})


def reply(prompt, completion):
    return Reply(text="t", usage=Usage(prompt_tokens=prompt, completion_tokens=completion))


def test_an_estimate_counts_characters_expected_tokens_and_the_limit():
    (row,) = estimate([call(), call(), call("y" * 35)], PRICES, {}).to_dict("records")
    assert row["calls"] == 2, "equal calls are asked once"
    assert (row["prompt tokens"], row["completion tokens"]) == (20 + 10, 40 + 40)
    assert row["cost"] == pytest.approx((30 * 10 + 80 * 30) / 1e6)
    assert row["at most"] == pytest.approx((30 * 10 + 200 * 30) / 1e6)


def test_what_has_a_reply_costs_nothing():
    calls = [call(user=str(i)) for i in range(5)]
    assert estimate(calls, PRICES, {c.key for c in calls[:3]})["calls"].tolist() == [2]
    assert estimate(calls, PRICES, {c.key for c in calls}).empty


def test_an_account_adds_up_what_servers_said():
    answered = [
        (call(), reply(1000, 100)),
        (call("other"), reply(600, 100)),
        (call(model="n"), reply(1, 1)),
    ]
    first, second = account(answered, PRICES).to_dict("records")
    assert (first["calls"], first["prompt tokens"], first["completion tokens"]) == (2, 1600, 200)
    assert first["cost"] == pytest.approx((1000 * 10 + 100 * 30 + 600 * 10 + 100 * 30) / 1e6)
    assert math.isnan(second["cost"])
    assert account([], PRICES).empty
