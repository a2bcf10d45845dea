"""The check on SmolLM2: which rates it chooses, what its tables say, what it runs, from results made up here."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hydra import compose, initialize_config_module
from hydra.utils import instantiate
from scipy import stats

from studies.smollm2 import training

pytestmark = pytest.mark.pages


def made_up(arm, rate, seed, pass_at_1, zero=20.0):
    splits = ("validation",) if seed == training.RATE_SEED else ("test_id", "test_phrasing")
    passed = {split: {"1": pass_at_1 - 0.1 * place, "32": 0.9} for place, split in enumerate(splits)}
    return {
        "arm": arm,
        "rate": rate,
        "seed": seed,
        "pass@k": passed,
        "course": {"without_gradient": [zero, zero + 10]},
    }


def test_a_rate_is_chosen_on_the_seed_that_is_not_reported():
    found = [
        made_up("grpo", "1e-5", 100, 0.3),
        made_up("grpo", "4e-5", 100, 0.5),
        made_up("grpo", "1e-5", 0, 0.9),
    ]
    assert training.chosen([*found, made_up("ta_grpo", "2e-5", 100, 0.1)]) == {
        "grpo": "4e-5",
        "ta_grpo": "2e-5",
    }
    assert training.RATE_SEED not in training.SEEDS


def test_tables_have_means_over_seeds_with_students_interval_and_pair_by_seed():
    arms = {"untrained": (0.1, 0.1), "grpo_matched": (0.4, 0.5), "ta_grpo": (0.5, 0.62)}
    found = [made_up(arm, "2e-5", seed, arms[arm][seed]) for arm in arms for seed in (0, 1)]
    lines = list(training.section([*found, made_up("ta_grpo", "2e-5", 100, 0.3)]))
    (rates,) = [line for line in lines if line.startswith("| TA-GRPO |")]
    assert rates == "| TA-GRPO | 30.0 | – | – | 2e-5 |"
    (test,) = [line for line in lines if line.startswith("| test, pass@1 |")]
    # Two seeds: the half width is 12.7062 times half their distance.
    assert test == "| test, pass@1 | 10.0 [10.0, 10.0] | 45.0 [-18.5, 108.5] | 56.0 [-20.2, 132.2] |"
    assert "| questions without gradient | – | 25.0 [25.0, 25.0] | 25.0 [25.0, 25.0] |" in lines
    (pair,) = [line for line in lines if line.startswith("| TA-GRPO − ")]
    low, high = 11 - 12.7062 * 1, 11 + 12.7062 * 1  # differences of 10 and 12 points
    assert f"| 11.0 [{low:.1f}, {high:.1f}] | 0.0 [0.0, 0.0] | 11.0 [{low:.1f}, {high:.1f}] |" in pair


def test_a_finished_run_is_not_run_again_and_one_that_ends_is_kept(tmp_path, monkeypatch):
    kept = tmp_path / "kept.jsonl"
    started = []

    def run_grid(grid, *_):
        (run,) = grid
        started.append((run.method, run.seed))
        (run.directory / "checkpoints").mkdir(parents=True)
        passed = {"test_id": {"pass_at_k": {"1": {"value": 0.25}}}}
        if run.method == "untrained_0":
            passed["asked"] = {"pass_at_k": {}, "questions": [{"id": "q/0", "correct": 3, "n": 64}]}
        (run.directory / "test.json").write_text(json.dumps({"splits": passed}))
        columns = [*training.COURSE.values(), "seconds/iteration"]
        rows = [",".join(columns), "12.5,1.0,0.5,,", "25,0.5,0.75,0.25,", ",,,,3.0"]
        (run.directory / "metrics.csv").write_text("\n".join(rows))
        return []

    monkeypatch.setattr(training, "run_grid", run_grid)
    for _ in range(2):
        training.run([("grpo", "1e-5", 3), ("untrained", "0", 3)], (), tmp_path / "runs", kept)
    assert started == [("grpo_1e-5", 3), ("untrained_0", 3)]
    first, last = training.results(kept)
    assert last["asked"] == {"q/0": 3}
    assert "asked" not in first
    assert first["pass@k"] == {"test_id": {"1": 0.25}}
    assert first["course"] == {
        "without_gradient": [12.5, 25.0], "entropy": [1.0, 0.5], "correct": [0.5, 0.75], "distance": [0.25],
    }  # fmt: skip
    assert not list((tmp_path / "runs").rglob("checkpoints"))


@pytest.mark.parametrize("arm", training.ARMS)
def test_the_settings_of_all_runs_are_those_of_the_demo_but_for_length_rate_and_validation(arm):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        tried = compose(
            "train", [f"experiment={arm}", *training.COMMON, training.TRAINED, *training.VALIDATION]
        )
        reported = compose("train", [f"experiment={arm}", *training.COMMON, training.TRAINED])
    assert list(tried.data.evaluation) == ["validation"]
    assert list(reported.data.evaluation) == ["test_id", "test_phrasing"]
    samples = {"grpo": 8, "grpo_matched": 32, "pass_at_k": 32, "ta_grpo": 8 * 4}
    assert reported.data.samples_per_prompt * (1 + (reported.data.num_rephrasings or 0)) == samples[arm]
    with initialize_config_module("tagrpo.configs.comparisons", version_base="1.3"):
        demo = compose("compare", ["compare=demo_lm"])
    own = ("optimizer.lr", "iterations", "trainer.val_check_interval", "data.validation_samples")
    same = {setting for setting in demo.overrides if not setting.startswith(own)}
    assert same <= {*training.COMMON}


def asked_again():
    """Two seeds of four questions: gaps of 0, 10, 20 and 30 points, and gains that rise by 3 or 5 points per ten."""
    found = []
    for seed, rise in ((0, 0.3), (1, 0.5)):
        ids = [f"q{n}" for n in range(4)]
        start = {f"{id}/{n}": 0.2 + 0.1 * place * (n > 0) for place, id in enumerate(ids) for n in range(4)}
        ours = {id: 0.3 + rise * 0.1 * place for place, id in enumerate(ids)}
        sides = {"untrained": start, "grpo_matched": dict.fromkeys(ids, 0.3), "ta_grpo": ours}
        for arm, rates in sides.items():
            counts = {id: rate * training.RESPONSES for id, rate in rates.items()}
            found.append({"arm": arm, "rate": "1e-5", "seed": seed, "asked": counts})
    return found


def test_gains_of_each_question_stand_beside_its_gap_and_rise_with_it():
    found = training.by_question(asked_again(), 1)
    assert found[0].tolist() == [pytest.approx([0, 0.1, 0.2, 0.3]), pytest.approx([0, 0.03, 0.06, 0.09])]
    table = list(training.gaps_section(asked_again()))
    half = 12.7062  # of two seeds, times half their distance, which is 1.5 for means and 1 for slopes
    assert table[2].startswith(
        f"| TA-GRPO − GRPO, as many samples | 6.0 [{6 - 1.5 * half:.1f}, {6 + 1.5 * half:.1f}] |"
    )
    assert table[3].startswith(f"| … its rise per ten points of gap | 4.0 [{4 - half:.1f}, {4 + half:.1f}] |")
    assert table[-1] == "Gaps: mean 15.0 [15.0, 15.0], standard deviation 12.9 [12.9, 12.9] points."


def test_gaps_are_drawn_by_thirds_of_the_questions():
    axis = training.dose(asked_again()).axes[0]
    (line, _, _), *_ = axis.containers
    assert line.get_xdata() == pytest.approx([5, 20, 30]), "four questions: two, one, one"
    assert line.get_ydata() == pytest.approx([2, 8, 12])


def test_all_arms_of_the_gaps_train_on_the_questions_that_are_asked():
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        configs = [
            compose("train", [f"experiment={arm}", *training.COMMON, *training.ASKED, asked, "seed=2"])
            for arm in ("grpo_matched", "ta_grpo")
            for asked in (training.ORIGINALS, training.EVERY_WORDING)
        ]
    trained = [instantiate(cfg.data.train).load() for cfg in configs]
    own, every = (instantiate(cfg.data.evaluation.asked).load() for cfg in configs[:2])
    assert all(each == trained[0] == own for each in trained)
    told = [text for group in own for text in (group.question, *group.rephrasings)]
    assert [group.question for group in every] == told
    assert [group.id for group in every[:5]] == [*(f"{own[0].id}/{n}" for n in range(4)), f"{own[1].id}/0"]
    assert {group.answer for group in every[:4]} == {own[0].answer}
    assert {cfg.data.evaluation_samples for cfg in configs} == {training.RESPONSES}


def test_an_interval_of_one_seed_is_left_out():
    assert training.told([0.5]) == "50.0"
    assert training.told(np.array([0.5, 0.5]).tolist()) == "50.0 [50.0, 50.0]"


def test_what_the_page_says_of_gaps_is_what_the_results_say():
    found, page = training.results(training.OF_GAPS[1]), training.PAGE.read_text()
    assert [(each["seed"], each["arm"]) for each in found] == [
        (seed, arm) for seed in training.SEEDS for arm in ("untrained", "grpo_matched", "ta_grpo")
    ]
    table = "\n".join(training.gaps_section(found))
    assert table in page
    prose = " ".join(page.partition("<!-- end gaps -->")[2].split())
    numbers = re.findall(r"([+−]?[\d.]+) (?:points (?:per ten points of gap )?)?\[([−\d., ]+)\]", prose)
    assert len(numbers) == 4
    for value, inside in numbers:
        assert f"{value.strip('+')} [{inside}]".replace("−", "-") in table
    slopes = {
        k: [stats.linregress(*of).slope for of in training.by_question(found, k).values()] for k in (1, 32)
    }
    assert min(slopes[1]) > 0, "in all four seeds"
    for values in slopes.values():  # not shown
        low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
        assert low < 0 < high
