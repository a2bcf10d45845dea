"""A mean over tasks is printed if the tasks' signs agree up to noise, and refused if they differ beyond it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from studies.tasks import of_seeds, over_tasks

pytestmark = pytest.mark.pages


def seeds_of(mean, noise, count=10):
    """`count` numbers with exactly this mean and this standard error."""
    raw = np.arange(count) - (count - 1) / 2
    return pd.Series(mean + raw / raw.std(ddof=1) * noise * count**0.5)


def effect(*tasks):
    """Tasks as pairs of mean and standard error."""
    return over_tasks(of_seeds({f"task{n}": seeds_of(*each) for n, each in enumerate(tasks)}))


def test_same_signs_are_printed_with_their_mean_and_each_task():
    found = effect((0.02, 0.004), (0.03, 0.004), (0.01, 0.004))
    assert found.mean.value == pytest.approx(0.02)
    reach = stats.t.isf(0.025, 27) * 0.004 / 3**0.5
    assert (found.mean.low, found.mean.high) == pytest.approx((0.02 - reach, 0.02 + reach))
    assert found.short == found.mean.signed
    inside = stats.t.isf(0.025, 9) * 0.004
    assert found.tasks["task1"].low == pytest.approx(0.03 - inside)
    assert found.full == f"{found.mean.signed} ({found.by_task})"
    assert all(f"task{n} " in found.by_task for n in range(3))


def test_same_signs_are_printed_however_different_the_tasks_are():
    found = effect((0.002, 0.0002), (0.09, 0.004), (0.1, 0.004))
    assert found.p < 1e-6
    assert found.mean.value == pytest.approx(0.064)


def test_opposite_signs_beyond_noise_have_no_mean():
    found = effect((0.01, 0.003), (-0.10, 0.01), (-0.01, 0.005))
    assert found.mean is None
    assert found.short == "tasks differ: task0 +1.0, task1 −10.0, task2 −1.0"
    assert found.full.startswith("tasks differ (task0 +1.0 [+0.3, +1.7], task1 −10.0 [")
    assert "−3.3" not in found.full, "the mean"


def test_opposite_signs_within_noise_are_printed():
    found = effect((0.001, 0.01), (-0.001, 0.01), (0.02, 0.01))
    assert found.p > 0.05
    assert found.mean.value == pytest.approx(0.02 / 3)


@pytest.mark.parametrize("noise", [0.0, 0.001])
def test_tasks_without_noise_are_compared_too(noise):
    exact = {
        "a": pd.Series(np.full(8, 0.25)),
        "b": pd.Series(np.full(8, -0.25) + noise * np.tile([1, -1], 4)),
    }
    assert over_tasks(of_seeds(exact)).mean is None
    assert over_tasks(of_seeds({**exact, "b": -exact["b"]})).mean is not None


def test_a_single_task_is_its_own_mean():
    found = effect((-0.01, 0.002))
    assert (found.mean, found.p) == (found.tasks["task0"], None)


def test_settings_of_a_task_are_averaged_and_seeds_are_counted_by_task():
    tables = {"a/easy": seeds_of(0.02, 0.001).to_frame(), "a/hard": seeds_of(-0.06, 0.001).to_frame()}
    tables["b/easy"] = seeds_of(-0.03, 0.001).to_frame()
    found = over_tasks(tables)
    assert list(found.tasks) == ["a", "b"]
    assert found.tasks["a"].value == pytest.approx(-0.02)
    assert found.mean.value == pytest.approx(-0.025)
    assert found.positive == "0 of 20"


def test_an_interval_of_another_level_is_that_of_the_mean_alone():
    tables = of_seeds({"a": seeds_of(0.02, 0.004), "b": seeds_of(0.03, 0.004)})
    plain, corrected = over_tasks(tables), over_tasks(tables, 0.0005)
    assert corrected.mean.low < plain.mean.low
    assert corrected.tasks == plain.tasks


def test_nothing_to_compare_is_an_error():
    with pytest.raises(ValueError, match="by_setting"):
        over_tasks({})


sizes = st.floats(1e-6, 0.2)
means = st.one_of(sizes, sizes.map(lambda size: -size))
errors = st.floats(1e-4, 0.05)


@given(st.lists(st.tuples(means, errors), min_size=2, max_size=5))
def test_the_rule_is_cochrans_q_and_signs(tasks):
    """Q by its definition in plain numpy, with Welch's correction (1951)."""
    found = effect(*tasks)
    value, error = np.array(tasks).T
    weight = error**-2 / (error**-2).sum()
    q = (((value - weight @ value) / error) ** 2).sum()
    count = len(tasks)
    doubt = ((1 - weight) ** 2 / 9).sum()
    p = stats.f.sf(
        q / (count - 1) / (1 + 2 * (count - 2) / (count**2 - 1) * doubt),
        count - 1,
        (count**2 - 1) / 3 / doubt,
    )
    assert found.p == pytest.approx(p, rel=1e-6, abs=1e-12)
    assume(abs(p - 0.05) > 1e-6)
    both = (value > 0).any() and (value < 0).any()
    assert (found.mean is None) == (both and p < 0.05)
    mirrored = effect(*((-mean, noise) for mean, noise in tasks))
    assert (mirrored.mean is None) == (found.mean is None)
