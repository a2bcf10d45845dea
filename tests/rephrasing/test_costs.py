from __future__ import annotations

import math

import pytest

from tagrpo.rephrasing.calls import ApiCall, Usage
from tagrpo.rephrasing.costs import Prices, costs, expected

PRICES = {"m": Prices(prompt=10.0, completion=30.0)}


def call(user="x" * 70, **facts):
    known = {"purpose": "rephrase", "model": "m", "system": ""}
    return ApiCall(**{**known, "user": user, "expected_tokens": 40, **facts})


def test_an_estimate_counts_characters_and_expected_tokens():
    (row,) = costs(expected([call(), call(), call("y" * 35)], {}), PRICES).to_dict("records")
    assert row["calls"] == 2, "equal calls are asked once"
    assert (row["prompt tokens"], row["completion tokens"]) == (20 + 10, 40 + 40)
    assert row["cost"] == pytest.approx((30 * 10 + 80 * 30) / 1e6)


def test_what_has_a_reply_costs_nothing():
    calls = [call(user=str(i)) for i in range(5)]
    assert costs(expected(calls, {c.key for c in calls[:3]}), PRICES)["calls"].tolist() == [2]
    assert costs(expected(calls, {c.key for c in calls}), PRICES).empty


def test_an_account_adds_up_what_servers_said():
    answered = [(call(), Usage(1000, 100)), (call("other"), Usage(600, 100)), (call(model="n"), Usage(1, 1))]
    first, second = costs(answered, PRICES).to_dict("records")
    assert (first["calls"], first["prompt tokens"], first["completion tokens"]) == (2, 1600, 200)
    assert first["cost"] == pytest.approx((1000 * 10 + 100 * 30 + 600 * 10 + 100 * 30) / 1e6)
    assert math.isnan(second["cost"])
