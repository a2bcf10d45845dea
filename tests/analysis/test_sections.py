"""The answer that a report begins with."""

from __future__ import annotations

import json
import re

import pandas as pd
import pytest

from tagrpo.analysis.comparison import Methods
from tagrpo.analysis.figures import Figures
from tagrpo.analysis.runs import by_method, find_directories, find_runs
from tagrpo.analysis.sections import answer, without_evaluation

BASE = [i % 3 for i in range(60)]


@pytest.fixture
def compared(tmp_path, write_run):
    """Three methods on 60 questions, of which the last one was not trained."""
    for seed in (0, 1):
        write_run(tmp_path, "good", seed, [c + 3 + (i + seed) % 2 for i, c in enumerate(BASE)])
        write_run(tmp_path, "bad", seed, [max(c - 1 - (i + seed) % 2, 0) for i, c in enumerate(BASE)])
        path = write_run(tmp_path, "untrained", seed, BASE)
        (path / "ledger.json").unlink()
    return Methods(by_method(find_runs(tmp_path), ["good", "bad", "untrained"]))


def test_gains_are_over_the_untrained_policy_wherever_it_stands(compared):
    assert compared.baseline == "untrained"
    assert compared.headline == ("test_id", 1)
    first, good, bad, untrained = answer(compared).sentences
    assert first.startswith("bad against good, with as many samples, on test_id: pass@1 worse (−")
    # 3½ of 8 responses more; of 0, 1 and 2 of 8, 1½ fewer where there are as many: (0 + 1 + 1½) / 3.
    assert re.match(
        r"good \(64 samples\): .*; against the untrained policy pass@1 better \(\+43\.8 \[\+", good
    )
    assert re.match(
        r"bad \(64 samples\): .*; against the untrained policy pass@1 worse \(−10\.4 \[−.*, −", bad
    )
    assert untrained == "untrained (not trained): pass@1 12.5 %, pass@8 66.7 %."


def test_the_interval_of_a_turned_difference_is_turned_too(compared):
    turned, direct = answer(compared).sentences[1], compared.difference(["test_id"], "good", "untrained", 1)
    assert f"pass@1 better ({direct.estimate.signed})" in turned


def test_a_gain_within_noise_is_not_called_one(tmp_path, write_run):
    write_run(tmp_path, "grpo", 0, [1, 2, 3])
    write_run(tmp_path, "ta_grpo", 0, [1, 3, 2])
    found = answer(Methods(by_method(find_runs(tmp_path))))
    begins = "ta_grpo against grpo, with as many samples, on test_id: pass@1 cannot be told (+0.0 ["
    assert found.sentences[0].startswith(begins)
    assert found.note.endswith("With one seed, the noise between seeds is not measured.")


def test_a_single_method_has_its_pass_at_k(tmp_path, write_run):
    write_run(tmp_path, "grpo", 0, [4, 4])
    (sentence,) = answer(Methods(by_method(find_runs(tmp_path)))).sentences
    assert (
        sentence
        == "grpo solves 50.0 [50.0, 50.0] % of test_id at pass@1; there is nothing here to compare with."
    )


def test_before_an_evaluation_there_is_the_course_of_training(tmp_path, write_run):
    write_run(tmp_path, "grpo", 0, [1])
    (run,) = find_runs(tmp_path)
    (sentence,) = without_evaluation([run]).sentences
    assert "20 % of responses to originals were correct in iteration 0, 30 % in iteration 1." in sentence
    pd.DataFrame({"step": [0], "rollout/reward": [1.0]}).to_csv(run.path / "metrics.csv", index=False)
    (run,) = find_runs(tmp_path)
    assert without_evaluation([run]).sentences == ["Not evaluated yet."]


def test_an_evaluation_of_any_policy_is_not_called_the_untrained_one(tmp_path, write_run):
    write_run(tmp_path, "ta_grpo", 0, [1, 2, 3])
    path = write_run(tmp_path, "evaluated", 0, [1, 2, 3])
    (path / "ledger.json").unlink()
    (path / "config.yaml").write_text("name: evaluated\nseed: 0\ndiagnose: null\n")
    compared = Methods(by_method(find_runs(tmp_path), ["ta_grpo", "evaluated"]))
    assert (compared.untrained, compared.baseline) == ([], "ta_grpo")
    assert (
        answer(compared)
        .sentences[0]
        .startswith("evaluated against ta_grpo, on test_id: pass@1 cannot be told (+0.0 [")
    )
    (panel,) = Figures(compared.runs, compared).all()["budget"]["panels"]
    assert [series["label"] for series in panel["series"]] == ["ta_grpo", "evaluated"]


def test_in_pictures_the_untrained_policy_is_called_so(compared):
    (panel,) = Figures(compared.runs, compared).all()["budget"]["panels"]
    assert [series["label"] for series in panel["series"]] == ["good", "bad", "untrained (not trained)"]


def test_what_shares_no_seed_with_others_is_not_what_they_are_compared_with(tmp_path, write_run):
    for method, seed in (("grpo", 3), ("ta_grpo", 3), ("untrained", 0)):
        path = write_run(tmp_path, method, seed, BASE)
    (path / "ledger.json").unlink()
    compared = Methods(by_method(find_runs(tmp_path), ["grpo", "ta_grpo", "untrained"]))
    assert compared.untrained == ["untrained"]
    first, *lines = answer(compared).sentences
    assert first.startswith("ta_grpo against grpo, with as many samples, on test_id: pass@1 cannot be told")
    assert [line.split(" ")[0] for line in lines] == ["ta_grpo", "grpo", "untrained"]


def test_of_an_exact_evaluation_the_success_is_told(tmp_path):
    splits = {"test_id": {"pass_at_k": {"1": {"value": 0.125}, "10": {"value": 0.5}}}}
    for name in ("exact.json", "evaluations/exact-000000.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"iteration": 0, "splits": splits}))
    (run,) = find_directories(tmp_path)
    (sentence,) = without_evaluation([run]).sentences
    assert sentence.endswith("seed 0: exact pass@1 of 12.5 % on test_id.")
