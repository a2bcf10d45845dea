"""The simulation of errors finds the true rates where they are known, and counts each false word once."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from studies.second import errors
from studies.second.errors import (
    ANY,
    FAMILIES,
    NOISE,
    deviations,
    drawn,
    is_false,
    kept_errors,
    simulated_errors,
    spreads,
)
from studies.second.verdicts import Hypothesis

RAISES = Hypothesis(smallest=0.02)
LITTLE = Hypothesis(smallest=0.02, little=True)


def gaussian(seed, shape, scale):
    return {"a − b": {"one/easy": pd.DataFrame(np.random.default_rng(seed).normal(0, scale, shape))}}


def test_on_exactly_normal_data_it_finds_the_true_rate_of_the_procedure():
    """Where there is no effect, each of 24 intervals misses it with probability 0.025 / 24, whatever the noise."""
    rounds = 3000
    known = [(RAISES, gaussian(seed, (6, 1), 0.02)) for seed in range(24)]
    told = simulated_errors(known, rounds)["rates"]["normal"]["0"][FAMILIES[1]][ANY]
    true = 1 - (1 - 0.025 / 24) ** 24
    assert abs(told - true) < 4 * (true * (1 - true) / rounds) ** 0.5


def test_spreads_of_seeds_questions_and_rest_are_told_apart_and_drawn_again():
    rng = np.random.default_rng(0)
    known = (0.3, 0.5, 0.2)
    parts = zip(known, ((400, 1), (1, 300), (400, 300)), strict=True)
    values = sum(scale * rng.normal(size=shape) for scale, shape in parts)
    assert spreads(values) == pytest.approx(known, rel=0.1)
    assert spreads(values[:, :1]) == (pytest.approx(float(np.std(values[:, 0], ddof=1))), 0.0, 0.0)
    for noise in NOISE:
        again = drawn(values[:50, :40], noise, 30, rng)
        assert again.shape == (30, 50, 40)
        found = np.mean([spreads(one) for one in again], axis=0)
        assert found == pytest.approx(spreads(values[:50, :40]), rel=0.1)
        assert stats.skew(drawn(values[:50, :1], noise, 200, rng).ravel()) == pytest.approx(
            {"normal": 0.0, "skewed": 2.0}[noise], abs=0.3
        )


def test_settings_differ_as_measured_around_the_effect_over_all():
    rng = np.random.default_rng(0)
    means = {"one/easy": 0.3, "one/hard": -0.1, "two/easy": 0.5}
    tables = {name: mean + 0.01 * rng.normal(size=(10, 1)) for name, mean in means.items()}
    found = deviations(tables, 5000, rng)
    over_all = ((found["one/easy"] + found["one/hard"]) / 2 + found["two/easy"]) / 2
    assert np.abs(over_all).max() < 1e-12
    assert found["two/easy"].std() > 0.1
    same = deviations({name: values - values.mean() for name, values in tables.items()}, 10, rng)
    assert all(np.abs(of).max() == 0 for of in same.values())


@pytest.mark.parametrize(
    ("word", "claim", "true_of"),
    [
        ("reproduces", RAISES, (0.01, 0.02, 0.03)),
        ("smaller than claimed", RAISES, (0.01,)),
        ("no effect", RAISES, (-0.01, 0.0, 0.01)),
        ("opposite", RAISES, (-0.03, -0.02, -0.01)),
        ("undecided", RAISES, (-0.03, -0.02, -0.01, 0.0, 0.01, 0.02, 0.03)),
        ("reproduces", LITTLE, (-0.01, 0.0, 0.01)),
        ("larger than claimed", LITTLE, (0.03,)),
        ("opposite", LITTLE, (-0.03, -0.02, -0.01)),
    ],
)
def test_of_which_effects_a_word_is_true(word, claim, true_of):
    effects = (-0.03, -0.02, -0.01, 0.0, 0.01, 0.02, 0.03)
    assert tuple(e for e in effects if not is_false(word, claim, e)) == true_of


def test_clear_effects_are_found_though_settings_differ(monkeypatch):
    """An average that takes regimes for questions finds none of them, and has no false word either."""
    monkeypatch.setattr(errors, "STUDIES", 10)
    rng = np.random.default_rng(0)
    settings = {"one/easy": 0.3, "one/hard": -0.3}
    tables = {name: pd.DataFrame(shift + 0.001 * rng.normal(size=(10, 1))) for name, shift in settings.items()}
    found = simulated_errors([(RAISES, {"a − b": tables})], rounds=20)
    kind = "single numbers per seed"
    assert {name: of[kind] for name, of in found["decided"].items()} == dict.fromkeys(errors.DECIDED, 1.0)


def test_they_are_simulated_once_for_the_same_digests(tmp_path):
    digest, kept = tmp_path / "a.jsonl.gz", tmp_path / "errors.json"
    digest.write_bytes(b"one")
    first = kept_errors([(RAISES, gaussian(0, (6, 4), 0.1))], [digest], kept, rounds=2)
    assert kept_errors([(RAISES, gaussian(0, (6, 1), 0.5))], [digest], kept, rounds=9) == first
    digest.write_bytes(b"two")
    second = kept_errors([(RAISES, gaussian(0, (6, 4), 0.1))], [digest], kept, rounds=3)
    assert (first["rounds"], second["rounds"]) == (2, 3)
