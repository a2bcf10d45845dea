"""The premise of TA-GRPO, measured on SmolLM2: estimators against enumeration."""

from __future__ import annotations

from itertools import combinations, product
from math import comb

import numpy as np
import pytest

from studies.smollm2 import premise

pytestmark = pytest.mark.pages


def test_each_pair_is_asked_once_and_in_one_order():
    asked = list(premise.questions())
    assert len({frozenset(pair) for pair in asked}) == len(asked) == 210
    assert {min(min(pair) for pair in asked), max(max(pair) for pair in asked)} == {2, 21}
    assert 60 < sum(a > b for a, b in asked) < 150


def test_equal_rewards_are_those_of_all_ways_to_draw(monkeypatch):
    monkeypatch.setattr(premise, "RESPONSES", 4)
    counts = np.array([[0, 1, 3], [4, 4, 2], [2, 2, 2]], dtype=float)
    for draws, wordings in ((2, 1), (2, 2), (3, 1), (1, 3)):
        expected = []
        for row in counts.astype(int):
            verdicts = [[1] * right + [0] * (4 - right) for right in row]
            equal = [
                len(set(np.ravel(drawn))) == 1
                for chosen in combinations(verdicts, wordings)
                for drawn in product(*(combinations(one, draws) for one in chosen))
            ]
            expected.append(np.mean(equal))
        assert premise.uniform(counts, draws, wordings) == pytest.approx(expected, abs=1e-12)


def test_the_spread_over_wordings_is_unbiased(monkeypatch):
    monkeypatch.setattr(premise, "RESPONSES", 3)
    rates = (0.1, 0.5, 0.8)
    outcomes = np.array(list(product(range(4), repeat=3)), dtype=float)
    chances = [
        np.prod([comb(3, int(k)) * p**k * (1 - p) ** (3 - k) for k, p in zip(row, rates, strict=True)])
        for row in outcomes
    ]
    assert premise.spread(outcomes) @ chances == pytest.approx(np.var(rates, ddof=1), abs=1e-12)


def test_distances_of_pairs_of_one_and_of_two_wordings(monkeypatch):
    monkeypatch.setattr(premise, "EMBEDDED", 2)
    vectors = {"a": (1.0, 0.0), "b": (0.0, 2.0), "c": (3.0, 4.0)}
    line = {
        "wordings": {
            "x": {"responses": ["a", "b", "left out"], "correct": [1, 1, 0]},
            "y": {"responses": ["a", "c", "left out"], "correct": [0, 1, 0]},
        }
    }
    found = premise.distances(line, lambda texts: [vectors[text] for text in texts])
    assert set(found) == {"all", "right"}  # one wrong response has no pair
    assert found["all"] == pytest.approx({"one": (1 + 0.4) / 2, "two": (0 + 0.4 + 1 + 0.2) / 4})
    assert found["right"] == pytest.approx({"one": 1.0, "two": (0.4 + 0.2) / 2})


def test_a_number_is_told_with_the_interval_of_its_bootstrap():
    values = np.random.default_rng(1).normal(5, 2, 400)
    mean, low, high = (
        float(x) for x in premise.told(values, digits=4).replace("[", "").strip("]").replace(",", "").split()
    )
    error = values.std(ddof=1) / 20
    assert (mean, low, high) == pytest.approx(
        (values.mean(), values.mean() - 1.96 * error, values.mean() + 1.96 * error), abs=0.02
    )
    assert premise.told(np.array([4.0, 4.0]), np.sqrt) == "2.0 [2.0, 2.0]"
