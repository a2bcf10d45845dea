"""Pictures show the numbers of the findings."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from studies.second.claims import Claim, passes
from studies.second.digest import KS
from studies.second.figures import draw_courses, draw_effects, effects
from studies.second.tables import settings_of
from studies.second.verdicts import findings_of


def tables(mean):
    noise = np.random.default_rng(0).normal(size=(8, 30))
    return {"countdown/easy": pd.DataFrame(mean + 0.001 * (noise - noise.mean()))}


CLAIMS = [
    Claim(statement="More.", source="s", pairs=passes(1, ("a", "b")), smallest=0.02),
    Claim(statement="Less.", source="s", pairs=passes(1, ("a", "b")), smallest=0.01, sign=-1),
]


def test_effects_are_in_units_of_the_smallest_and_positive_as_claimed():
    findings = findings_of([(CLAIMS[0], {"pass@1, a − b": tables(0.05)}), (CLAIMS[1], {"pass@1, a − b": tables(0.03)})])
    (more, value, low, high, verdict), (less, other, lower, upper, against) = effects(CLAIMS, findings)
    assert (more, less) == ("pass@1, a − b  1", "pass@1, a − b  2")
    assert (value, other) == (pytest.approx(2.5), pytest.approx(-3.0))
    assert low < value < high
    assert lower < other < upper
    assert (verdict, against) == ("reproduces", "refuted")


def entry(method, seed, gain):
    curve = [gain + 0.01 * seed] * len(KS)
    points = [{"iteration": n, "responses": 10 * n, "seconds": n, "pass": {"test_id": curve}} for n in (1, 2)]
    names = {"task": "countdown", "regime": "easy", "method": method, "seed": seed, "n": 0}
    return {**names, "success": {"test_id": [gain, gain]}, "course": points}


def test_courses_are_means_over_seeds():
    entries = [entry("grpo", seed, 0.5) for seed in (0, 2)]
    responses, values = settings_of(entries)["countdown/easy"].course("grpo", 1)
    assert responses.tolist() == [10, 20]
    assert values.tolist() == [pytest.approx(0.51)] * 2


def test_pictures_are_drawn_the_same_every_time(tmp_path):
    findings = findings_of([(CLAIMS[0], {"pass@1, a − b": tables(0.05)})])
    entries = [entry(method, seed, 0.5) for method in ("base", "grpo", "ta_grpo") for seed in (0, 1)]
    for name in ("one", "two"):
        draw_effects(CLAIMS[:1], findings, tmp_path / name / "effects.png")
        draw_courses(entries, tmp_path / name / "courses.png")
    for picture in ("effects.png", "courses.png"):
        one, two = ((tmp_path / name / picture).read_bytes() for name in ("one", "two"))
        assert one == two
        assert len(one) > 5000
