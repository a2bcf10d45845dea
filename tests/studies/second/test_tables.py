"""The digest as tables, against the same numbers by hand; and that every claim finds its quantity in them."""

from __future__ import annotations

import json
from math import comb

import numpy as np
import pytest

from studies.second.claims import GROUPS, POINTS, Claim, equal_seconds, gains, in_second_half, passes, within
from studies.second.digest import KS, read, write
from studies.second.tables import PARTS, settings_of
from studies.second.verdicts import OVERALL, findings_of


def entry(method, seed, success, n=0, regime="easy", **changes):
    p = np.array(success["test_id"], dtype=float) / (n or 1)
    curve = [float((1 - (1 - p) ** k).mean()) for k in KS]
    return {
        "task": "countdown",
        "regime": regime,
        "method": method,
        "seed": seed,
        "n": n,
        "success": success,
        "seconds": 10.0,
        "course": [
            {"iteration": 2, "responses": 20, "seconds": 5.0, "pass": {"test_id": [0.0] * len(KS)}},
            {"iteration": 4, "responses": 40, "seconds": 10.0, "pass": {"test_id": curve}},
        ],
        "series": {"rollout/entropy": [8.0, 7.0, 6.0, 5.0, 4.0, None, 2.0, 1.0]},
        "support": {"test_id": {"support_lost": {"100": 0.25}}},
        **changes,
    }


def test_exact_and_counted_pass_at_k():
    exact, counted = (
        settings_of([entry("grpo", 3, {"test_id": [0.5, 0.1]})])["countdown/easy"],
        settings_of([entry("grpo", 3, {"test_id": [256, 0], "other": [1]}, n=512)])["countdown/easy"],
    )
    table = exact.pass_at_k("grpo", 4)
    assert list(table.index) == [3]
    assert table.to_numpy().tolist() == [[pytest.approx(1 - 0.5**4), pytest.approx(1 - 0.9**4)]]
    expected = [1 - comb(256, 4) / comb(512, 4), 0.0]
    assert counted.pass_at_k("grpo", 4, "test_id").to_numpy().tolist() == [pytest.approx(expected)]
    assert counted.pass_at_k("grpo", 4).shape == (1, 3)
    with pytest.raises(KeyError, match="only grpo"):
        exact.pass_at_k("dapo", 1)


def test_parts_of_training():
    setting = settings_of([entry("grpo", 0, {"test_id": [0.5]})])["countdown/easy"]
    assert PARTS == 8
    means = {
        part: float(setting.series("grpo", "rollout/entropy", part).iloc[0, 0]) for part in ("all", "first", "last")
    }
    assert means == {"all": pytest.approx(33 / 7), "first": 7.5, "last": 1.5}


def test_between_evaluations_it_is_interpolated_and_after_the_last_it_stays():
    setting = settings_of([entry("grpo", seed, {"test_id": [0.5]}) for seed in range(4)])["countdown/easy"]
    found = setting.at_seconds("grpo", 1, {0: 7.5, 1: 10.0, 2: 99.0})
    assert found.to_numpy()[:, 0].tolist() == [pytest.approx(0.25), pytest.approx(0.5), pytest.approx(0.5)]
    assert setting.support("grpo", "support_lost", 100).to_numpy().tolist() == [[0.25]] * 4


def test_after_a_share_of_training_it_is_interpolated_by_iterations():
    setting = settings_of([entry("grpo", seed, {"test_id": [0.5]}) for seed in range(2)])["countdown/easy"]
    assert [float(setting.at_share("grpo", 1, share).iloc[0, 0]) for share in (0.5, 0.75, 1.0)] == [0.0, 0.25, 0.5]
    found = in_second_half(1, ("ours", "theirs"))["rise of pass@1 in the second half, ours − theirs"]
    both = [entry(m, seed, {"test_id": [p]}) for m, p in (("ours", 0.6), ("theirs", 0.2)) for seed in range(2)]
    assert found(settings_of(both)["countdown/easy"]).to_numpy().tolist() == [[pytest.approx(0.4)]] * 2


def test_what_was_measured_on_questions_is_told_of_the_seeds_that_have_it():
    entries = [entry("grpo", seed, {"test_id": [0.5]}, questions={"questions/all/x": 0.1 * seed}) for seed in range(2)]
    setting = settings_of([*entries, entry("grpo", 2, {"test_id": [0.5]}, questions={})])["countdown/easy"]
    assert setting.on_questions("grpo", "questions/all/x").to_numpy().tolist() == [[0.0], [0.1]]
    with pytest.raises(KeyError, match="no run has it"):
        setting.on_questions("grpo", "questions/all/y")


def three_seeds(gain):
    base = {seed: np.random.default_rng(seed).uniform(0.1, 0.5, 6) for seed in range(3)}
    entries = [entry("theirs", seed, {"test_id": p.tolist()}) for seed, p in base.items()]
    return entries + [entry("ours", seed, {"test_id": (p + gain).tolist()}, seconds=20.0) for seed, p in base.items()]


def test_differences_of_claims():
    settings = settings_of(three_seeds(0.2))

    def difference(pairs):
        (table,) = pairs.values()
        return table(settings["countdown/easy"])

    assert np.allclose(difference(passes(1, ("ours", "theirs"))), 0.2)
    at_8 = 1 - (1 - settings["countdown/easy"].pass_at_k("theirs", 1) - 0.2) ** 8
    expected = at_8 - (1 - (1 - settings["countdown/easy"].pass_at_k("theirs", 1)) ** 8) - 0.2
    assert np.allclose(difference(gains(8, ("ours", "theirs"))), expected)
    # Ours took twice as long, and counts with what it had after the seconds of theirs.
    assert np.allclose(difference(equal_seconds(1, ("ours", "theirs"))), 0.2)
    assert np.allclose(difference(within("rollout/entropy", "rollout/entropy", "ours")), 0.0)


def test_a_claim_is_tested_where_its_methods_ran():
    claim = Claim(statement="", source="", pairs=passes(1, ("ours", "theirs")), smallest=POINTS)
    entries = [*three_seeds(0.2), entry("ours", 0, {"test_id": [0.5]}, regime="medium")]
    (found,) = findings_of([(claim, claim.tables(settings_of(entries)))])
    assert [finding.setting for finding in found] == ["countdown/easy", OVERALL]
    assert found[-1].word == "reproduces"


def test_statements_of_claims_are_told_apart():
    statements = [claim.statement for claims in GROUPS.values() for claim in claims]
    assert len({s for s in statements if not s.startswith("…")}) == len(
        [s for s in statements if not s.startswith("…")]
    )
    labels = [label for claims in GROUPS.values() for claim in claims for label in claim.pairs]
    assert len(labels) > 40


def test_a_digest_is_the_same_bytes_for_the_same_entries(tmp_path):
    entries = three_seeds(0.1)
    for name in ("one", "two"):
        assert write(iter(entries), tmp_path / name) == 6
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert read(tmp_path / "one") == json.loads(json.dumps(entries))
