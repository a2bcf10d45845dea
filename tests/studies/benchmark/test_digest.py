"""The digest as tables, against the same numbers by hand."""

from __future__ import annotations

import json
from math import comb

import numpy as np
import pytest

from studies.benchmark.digest import gains, read, settings_of, table_of, write

pytestmark = pytest.mark.pages


def entry(method, seed, success, n=0, regime="easy", **changes):
    return {
        "task": "countdown",
        "regime": regime,
        "method": method,
        "seed": seed,
        "n": n,
        "success": success,
        **changes,
    }


def test_exact_and_counted_pass_at_k():
    exact, counted = (
        settings_of([entry("grpo", 3, {"test_id": [0.5, 0.1]})])["countdown/easy"],
        settings_of([entry("grpo", 3, {"test_id": [256, 0], "other": [1]}, n=512)])["countdown/easy"],
    )
    table = table_of(exact, "grpo", 4)
    assert list(table.index) == [3]
    assert table.to_numpy().tolist() == [[pytest.approx(1 - 0.5**4), pytest.approx(1 - 0.9**4)]]
    expected = [1 - comb(256, 4) / comb(512, 4), 0.0]
    assert table_of(counted, "grpo", 4).to_numpy().tolist() == [pytest.approx(expected)]
    assert gains({"countdown/easy": exact}, "dapo", 4) == {}, "where it has not run"
    with pytest.raises(KeyError, match="only grpo"):
        table_of(exact, "dapo", 1)


def three_seeds(gain):
    base = {seed: np.random.default_rng(seed).uniform(0.1, 0.5, 6) for seed in range(3)}
    entries = [entry("theirs", seed, {"test_id": p.tolist()}) for seed, p in base.items()]
    return entries + [entry("ours", seed, {"test_id": (p + gain).tolist()}) for seed, p in base.items()]


def test_a_digest_is_the_same_bytes_for_the_same_entries(tmp_path):
    entries = three_seeds(0.1)
    for name in ("one", "two"):
        assert write(iter(entries), tmp_path / name) == 6
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert read(tmp_path / "one") == json.loads(json.dumps(entries))
