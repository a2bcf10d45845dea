"""The numbers of a comparison, by hand."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import yaml

from tagrpo.analysis.comparison import Methods
from tagrpo.analysis.runs import by_method, find_runs
from tagrpo.analysis.sections import sections

# Correct of 8 responses to three questions, by seed.
CORRECT = {
    "base": {0: [1, 2, 3]},
    "grpo": {0: [2, 2, 4], 1: [4, 4, 4]},
    "ta_grpo": {0: [4, 4, 4], 7: [8, 8, 8]},
}
SETTINGS = {
    "grpo": {"policy": {"anchor": "own"}, "lr": 1e-6, "optimizer": {"lr": 1e-6}, "seed": 0},
    "ta_grpo": {"policy": {"anchor": "original"}, "lr": 1e-5, "optimizer": {"lr": 1e-5}, "seed": 5},
}


@pytest.fixture
def methods(tmp_path, write_run):
    for method, seeds in CORRECT.items():
        for seed, correct in seeds.items():
            path = write_run(tmp_path, method, seed, correct, zero=50.0 + seed)
            config = {**SETTINGS.get(method, {}), "name": method, "seed": seed, "data": {"batch_size": 2}}
            (path / "config.yaml").write_text(
                yaml.safe_dump({**config, "trainer": {"default_root_dir": str(path)}})
            )
    (tmp_path / "base" / "seed0" / "ledger.json").unlink()
    return Methods(by_method(find_runs(tmp_path), list(CORRECT)))


def test_the_trained_methods_are_those_that_made_steps(methods):
    assert list(methods.trained) == ["grpo", "ta_grpo"]
    assert (methods.splits, methods.largest_k) == ({"test_id": [1, 2, 4, 8]}, 8)


def test_a_gain_is_paired_over_the_seeds_that_both_have(methods):
    gains = methods.gains("grpo")["test_id"]
    assert list(gains) == ["base", "ta_grpo"]
    # Seed 0 alone is shared: (4 − 2 + 4 − 2 + 4 − 4) / 3 / 8 and (1 − 2 + 2 − 2 + 3 − 4) / 3 / 8.
    assert gains["ta_grpo"][1].value == pytest.approx(4 / 24)
    assert gains["base"][1].value == pytest.approx(-2 / 24)


def test_methods_without_a_common_seed_are_not_compared(tmp_path, write_run):
    write_run(tmp_path, "one", 0, [1, 2])
    write_run(tmp_path, "two", 1, [1, 2])
    methods = Methods(by_method(find_runs(tmp_path)))
    assert methods.comparisons == []
    assert methods.gains("one") == {"test_id": {}}


def with_splits(path, groups, **correct):
    """Give a run the splits name → correct of 8, and averages over groups of them."""
    test = json.loads((path / "test.json").read_text())
    (old,) = test["splits"].values()
    test["splits"] = {
        name: old | {"questions": [{"id": f"{i}", "n": 8, "correct": c} for i, c in enumerate(counts)]}
        for name, counts in correct.items()
    }
    test["groups"] = {name: {"splits": splits} for name, splits in groups.items()}
    (path / "test.json").write_text(json.dumps(test))


@pytest.fixture
def averaged(tmp_path, write_run):
    """Two methods on two splits of unequal size, averaged over both, and a group that only one run has."""
    for method, (a, b) in {"grpo": ([0, 4], [8]), "ta_grpo": ([4, 8], [8])}.items():
        path = write_run(tmp_path, method, 0, [0])
        with_splits(path, {"both": ["a", "b"], method: ["a"]}, a=a, b=b)
    return Methods(by_method(find_runs(tmp_path), ["grpo", "ta_grpo"]))


def test_an_average_gives_splits_the_same_weight_and_by_question_questions(averaged):
    assert averaged.groups == {"both": ["a", "b"]}
    assert list(averaged.curves) == ["a", "b", "both (average)"]
    assert averaged.at(1)["both (average)"]["grpo"].value == pytest.approx((2 / 8 + 1) / 2)
    assert averaged.by_question["both (by question)"]["grpo"][1].value == pytest.approx((0 + 4 + 8) / 3 / 8)
    found = averaged.results()["averages"]["both"]
    assert found["splits"] == ["a", "b"]
    assert found["pass_at_k"]["ta_grpo"]["1"]["value"] == pytest.approx((6 / 8 + 1) / 2)
    assert list(averaged.results()["pass_at_k"]) == ["a", "b"]
    # Pass@8 is 1 where any of the 8 is right.
    assert averaged.at(8)["both (average)"]["grpo"].value == pytest.approx(0.75)


def test_an_average_is_compared_as_the_splits_are(averaged):
    gain = averaged.gains("grpo")["both (average)"]["ta_grpo"][1]
    assert gain.value == pytest.approx((4 / 8 + 0) / 2)
    compared = {c.quantity: c.difference for c in averaged.comparisons}
    assert compared["pass@k/both (average)/1"] == gain
    assert [q for q in compared if "average" in q] == ["pass@k/both (average)/1", "pass@k/both (average)/8"]


def test_comparisons_are_corrected_together_and_keep_their_order(averaged):
    found = averaged.comparisons
    raw = [
        averaged.difference(splits, "ta_grpo", "grpo", k).p_value
        for splits in averaged.parts.values()
        for k in (1, 8)
    ]
    raw.append(1.0)  # both logged 50 % without gradient in each iteration
    ranked = sorted(raw)
    holm = [max(min(1.0, (len(raw) - j) * ranked[j]) for j in range(ranked.index(p) + 1)) for p in raw]
    assert [c.p_value for c in found] == pytest.approx(holm)
    assert [c.quantity for c in found][::6] == ["pass@k/a/1", "zero_gradient/percentage"]
    assert averaged.results()["comparisons"][0]["verdict"] == found[0].verdict


def test_pass_at_k_is_a_mean_over_questions_and_seeds(methods):
    assert list(methods.at(1)["test_id"]) == list(CORRECT)
    # (2 + 2 + 4 + 4 + 4 + 4) / 6 / 8
    assert methods.at(1)["test_id"]["grpo"].value == pytest.approx(20 / 48)


def test_the_rate_of_questions_without_gradient_is_told_of_the_first_fifth_too(tmp_path, write_run):
    for seed, first in ((0, 10.0), (1, 30.0)):
        path = write_run(tmp_path, "grpo", seed, [1, 2])
        rates = [first, first + 10, *[60.0] * 8]
        rows = {"step": range(10), "rollout/reward": [0.5] * 10, "zero_gradient/percentage": rates}
        pd.DataFrame(rows).to_csv(path / "metrics.csv", index=False)
    write_run(tmp_path, "untold", 0, [1, 2])
    pd.DataFrame({"step": [0], "rollout/reward": [0.5]}).to_csv(
        tmp_path / "untold" / "seed0" / "metrics.csv", index=False
    )
    (budgets,) = [s for s in sections(Methods(by_method(find_runs(tmp_path)))) if s.title == "Budgets"]
    assert budgets.header[-2:] == ["% without gradient", "at first"]
    # (10 + 20 + 30 + 40) / 4, and with sixteen times 60 the mean of twenty.
    assert {row[0]: row[-2:] for row in budgets.rows} == {"grpo": ["53.0", "25.0"], "untold": ["–", "–"]}


def test_methods_that_differ_in_their_questions_alone_are_a_series(tmp_path, write_run):
    for method, kept, source, lr in (
        ("more", 96, "both", 1),
        ("less", 64, "math", 1),
        ("other", 64, "math", 2),
    ):
        path = write_run(tmp_path, method, 0, [1, 2])
        config = {"name": method, "data": {"train": {"path": source}}, "lr": lr}
        (path / "config.yaml").write_text(yaml.safe_dump(config))
        (path / "data.json").write_text(json.dumps({"train": {"kept": kept}}))
    methods = Methods(by_method(find_runs(tmp_path)))
    assert methods.training_questions == {"more": 96, "less": 64, "other": 64}
    assert methods.data_series == [["less", "more"], ["other"]]


def test_settings_differ_between_trained_methods_and_are_named_once(methods):
    assert methods.differing_settings() == {
        "lr": {"grpo": 1e-6, "ta_grpo": 1e-5},
        "policy.anchor": {"grpo": "own", "ta_grpo": "original"},
    }


def test_a_run_says_how_long_it_took(methods):
    assert methods.trained["grpo"][0].wall_seconds == 1.5
