"""Starters are judged on the untrained policies alone, and the rule agrees with what was found of those that exist."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from studies.fourth.starters import LEAST, SOLVED, SPAN, fault, faults, main, measured
from studies.third.design import GAPS, UNTRAINED
from studies.third.page import RUNS

pytestmark = pytest.mark.pages


def gaps(*values):
    return dict(zip(GAPS, values, strict=True))


PLANNED = gaps(-0.02, 0.03, 0.08, 0.13, 0.18)


@pytest.mark.parametrize(
    ("changed", "solved", "told"),
    [
        (PLANNED, 0.3, ""),
        (PLANNED, SOLVED + 0.01, "51 % of the questions are solved"),
        ({**PLANNED, "gap0": -LEAST - 0.01}, 0.3, "the least gap is -26 points"),
        ({**PLANNED, "gap4": -0.02 + SPAN - 0.01}, 0.3, "the gap grows by 9 points"),
        ({**PLANNED, "gap2": 0.02}, 0.3, "the gap does not grow at each step"),
        ({name: gap for name, gap in PLANNED.items() if name != "gap3"}, 0.3, "no gap3"),
    ],
)
def test_a_seed_that_is_not_as_planned_is_told_with_its_reason(changed, solved, told):
    assert fault(changed, solved) == told


def test_the_starters_that_exist_are_as_planned_where_the_study_says_so():
    """By success on test questions, which the table of the third study has."""
    runs = pd.read_csv(RUNS)
    first = runs["arm"].eq(UNTRAINED) & runs["wording"].eq("original") & runs["kind"].eq("wording")
    starts = runs[first & runs["branch"].isin(GAPS)].rename(columns={"pass@1": "solved"})
    found = faults(starts.set_index(["task", "seed", "branch"])[["gap", "solved"]])
    planned = found[found == ""]
    assert list(planned["shortest_path"].index) == [0, 5, 6, 9]
    assert len(planned["arithmetic"]) == len(planned["countdown"]) == 10


def write(folder, task, branch, seed, original, wording):
    path = folder / task / branch / f"seed{seed}" / f"{UNTRAINED}-wording-sampled-0.json"
    path.parent.mkdir(parents=True)
    prompts = {"original": original, "wording": wording}
    path.write_text(json.dumps({"task": task, "branch": branch, "seed": seed, "prompts": prompts}))


def test_gaps_are_those_of_the_files(tmp_path, monkeypatch, capsys):
    for branch, gap in PLANNED.items():
        write(tmp_path, "countdown", branch, 10, [0.2, 0.4], [0.2 + gap, 0.4 + gap, 0.3 + gap])
    write(tmp_path, "countdown", "gap0", 11, [0.9, 0.9], [0.9])
    starts = measured(tmp_path)
    assert starts.loc[("countdown", 10, "gap3"), "gap"] == pytest.approx(0.13)
    assert starts.loc[("countdown", 10, "gap3"), "solved"] == pytest.approx(np.mean([0.2, 0.4]))
    monkeypatch.setattr("sys.argv", ["starters", str(tmp_path)])
    main()
    assert capsys.readouterr().out.splitlines() == [
        "countdown seed 10: as planned",
        "countdown seed 11: no gap1, gap2, gap3, gap4",
    ]


def test_a_folder_without_runs_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="untrained policies"):
        measured(tmp_path)
