"""Pictures show the numbers that they are given, with the untrained policy at 0."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from studies.second import figures
from studies.second.digest import KS
from studies.second.figures import draw_courses, draw_gains
from studies.second.page import Gain
from studies.second.tables import settings_of
from tagrpo.analysis.statistics import Estimate


def entry(method, seed, value):
    curve = [value + 0.01 * seed] * len(KS)
    points = [{"iteration": n, "responses": 10 * n, "seconds": n, "pass": {"test_id": curve}} for n in (1, 2)]
    names = {"task": "countdown", "regime": "easy", "method": method, "seed": seed, "n": 0}
    return {**names, "success": {"test_id": [value, value]}, "course": points}


ENTRIES = [entry(method, seed, 0.5 if method == "base" else 0.6) for method in ("base", "grpo") for seed in (0, 2)]
GAINS = [
    Gain(
        grid="factors",
        method="grpo",
        seeds=2,
        of_k={k: Estimate(0.1, 0.05, 0.2) for k in (1, 32)},
        settings={k: {"countdown/easy": 0.1, "countdown/hard": 0.15} for k in (1, 32)},
        heterogeneity=None,
    )
]


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved, still open."""
    kept = []
    monkeypatch.setattr(figures, "save", lambda figure, _: kept.append(figure))
    yield kept
    plt.close("all")


def test_courses_are_gains_over_the_untrained_policy(drawn, tmp_path):
    responses, values = settings_of(ENTRIES)["countdown/easy"].course("grpo", 1)
    assert (responses.tolist(), values.tolist()) == ([10, 20], [pytest.approx(0.61)] * 2)
    draw_courses(ENTRIES, tmp_path / "courses.png")
    line = drawn[0].axes[0].get_lines()[0]
    assert line.get_xdata().tolist() == [0, 10, 20]
    assert line.get_ydata().tolist() == [0, pytest.approx(11), pytest.approx(11)]


def test_gains_are_means_with_intervals_and_settings(drawn, tmp_path):
    draw_gains(GAINS, tmp_path / "gains.png")
    easy, hard, mean, zero = drawn[0].axes[1].get_lines()
    found = [float(x) for line in (easy, hard, mean) for x in line.get_xdata()]
    assert found == [pytest.approx(10), pytest.approx(15), pytest.approx(10)]
    assert set(zero.get_xdata()) == {0}
    ((low, _), (high, _)) = drawn[0].axes[1].collections[0].get_segments()[0]
    assert (low, high) == (pytest.approx(5), pytest.approx(20))


def test_pictures_are_the_same_every_time(tmp_path):
    for name in ("one", "two"):
        draw_gains(GAINS, tmp_path / name / "gains.png")
        draw_courses(ENTRIES, tmp_path / name / "courses.png")
    for picture in ("gains.png", "courses.png"):
        one, two = ((tmp_path / name / picture).read_bytes() for name in ("one", "two"))
        assert one == two
        assert len(one) > 5000
