"""A method of somebody else's is run, digested and shown beside those of the digest; runs that are there are kept."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hydra import compose, initialize_config_module

import tagrpo.starter
from studies.benchmark import run
from studies.benchmark.digest import BASE, read, setting_of
from studies.benchmark.page import kept
from studies.benchmark.run import BESIDE, CONFIGS, GRIDS, Own, bench, beside, grid, main, make_starters

pytestmark = pytest.mark.pages

SMALL = ["iterations=2", "logger=csv", "data.train.size=16", "data.samples_per_prompt=4", "export=false"]
SMALL += ["data.evaluation_samples=32", "data.evaluation.test_id.size=64", "rollout.engine.max_rows=2048"]
SMALL += ["data.evaluation.test_phrasing.size=4", "data.evaluation.test_size.size=4"]
MINE = '''
import torch
from tagrpo.types import AdvantageStrategy

class Mine(AdvantageStrategy):
    """Rewards as they are."""

    def __call__(self, groups):
        return groups.rewards.float()
'''

EXPERIMENT = "# @package _global_\n# tagrpo-train experiment=mine          mine\ndefaults:\n  - override /advantage: mine\n"


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Changes that make the runs of arithmetic/mixed small; its starter of seed 3 is that of the package."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(run, "STARTERS", tmp_path / "starters")
    place = tmp_path / "starters" / "arithmetic" / "seed3"
    shutil.copytree(
        Path(tagrpo.starter.__file__).parent, place, ignore=shutil.ignore_patterns("*.py", "__pycache__")
    )
    overrides = ",".join(f"'{override}'" for override in [*SMALL, f"model.path={place}"])
    return [
        f"root={tmp_path}/runs/arithmetic/mixed",
        f"overrides=[{overrides}]",
        "evaluation_of.arithmetic=[]",
    ]


def test_a_method_of_another_package_is_run_digested_and_shown_and_kept(small, monkeypatch, tmp_path, capsys):
    (tmp_path / "my_parts.py").write_text(MINE)
    (tmp_path / "options" / "advantage").mkdir(parents=True)
    (tmp_path / "options" / "advantage" / "mine.yaml").write_text("_target_: my_parts.Mine\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "options" / "experiment").mkdir()
    (tmp_path / "options" / "experiment" / "mine.yaml").write_text(EXPERIMENT)
    method = Own("mine", ["experiment=mine"], tmp_path / "options")
    text = bench(method, ["arithmetic/mixed"], [3], 1, *small)
    printed = capsys.readouterr().out
    assert "base seed 3: done" in printed
    assert "mine seed 3: done" in printed
    start, mine = read(tmp_path / "runs" / "mine.jsonl.gz")
    assert (start["method"], mine["method"], mine["seed"], mine["n"]) == ("base", "mine", 3, 32)
    assert mine["weights"]
    assert mine["ledger"]["rollouts"] == 2 * 8 * (1 + 3) * 4, "iterations, questions, prompts, responses"
    (file,) = (tmp_path / "runs").rglob("mine/seed3/**/metrics.csv")
    seconds = {
        name.partition("/")[2]: column.sum()
        for name, column in pd.read_csv(file).items()
        if "seconds/" in name
    }
    assert mine["seconds"] == pytest.approx(
        sum(seconds[p] for p in ("sync", "generate", "score", "update")), abs=0.051
    )
    lines = {line.split("  ")[0]: line for line in text.splitlines()}
    assert list(lines)[:2] == ["method", "untrained"]
    assert {"mine", *BESIDE} <= lines.keys()
    # pass@1 of a question is the share of its 32 responses that are correct.
    gain = 100 * (np.mean(mine["success"]["test_id"]) - np.mean(start["success"]["test_id"])) / 32
    assert f"  {gain:+.1f} [".replace("-", "−") in lines["mine"]
    assert bench(method, ["arithmetic/mixed"], [3], 1, *small) == text
    assert "done" not in capsys.readouterr().out, "nothing is trained twice"
    with pytest.raises(ValueError, match="delete that directory"):
        bench(Own("mine", ["experiment=grpo"]), ["arithmetic/mixed"], [3], 1, *small)
    with pytest.raises(SystemExit, match="optimizer.lr.*-1(.|\n)*Failed.*log.txt.*other/seed3"):
        bench(Own("other", ["experiment=grpo", "optimizer.lr=-1"]), ["arithmetic/mixed"], [3], 1, *small)


def own(change):
    """A method that has the runs of GRPO in the digest; what it began with is changed by `change`."""
    for each in kept()[0]:
        if each["method"] in (BASE, "grpo") and each["seed"] < 4:
            success = {
                split: [change(value) for value in values] for split, values in each["success"].items()
            }
            yield {**each, "method": {"grpo": "mine"}.get(each["method"], BASE), "success": success}


def test_a_method_is_shown_over_its_own_starters_and_says_where_they_are_not_those_of_the_digest():
    same = "\n".join(beside(list(own(lambda value: value))))
    rows = {line.split("  ")[0]: line.split()[1:] for line in same.splitlines()}
    assert rows["mine"][:8] == rows["grpo"][:8], "the same runs over the same start, at the same seeds"
    assert "4" in rows["mine"][0]
    assert "+0.0 [+0.0, +0.0]" in same
    assert "untrained, yours" not in same
    assert "Your starters" not in same
    assert "On arithmetic/mixed, countdown/easy, shortest_path/easy, seeds 0, 1, 2, 3:" in same
    away = [run for run in own(lambda value: value) if run["task"] == "countdown"]
    away = [{**run, "success": {s: [p / 2 for p in of] for s, of in run["success"].items()}} for run in away]
    text = "\n".join(beside(away))
    assert "Your starters are not those of the digest (countdown/easy):" in text
    found, theirs = (
        np.mean([r["success"]["test_id"] for r in away if r["method"] == m]) for m in ("mine", BASE)
    )
    (line,) = (line for line in text.splitlines() if line.startswith("mine"))
    assert f"{100 * (found - theirs):+.1f} [" in line, "over its own start"
    (line,) = (line for line in text.splitlines() if line.startswith("untrained, yours"))
    assert f"0 (of {100 * theirs:.1f} %)" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "grpo", "--overrides", "experiment=grpo"], "a new name, but the benchmark has 'grpo'"),
        (["--method", "base", "--overrides", "experiment=grpo"], "a new name, but the benchmark has 'base'"),
        (["--method", "a/b", "--overrides", "experiment=grpo"], "letters, digits and _, but got 'a/b'"),
        (["--method", "", "--overrides", "experiment=grpo"], "letters, digits and _, but got ''"),
        (["--method", "mine"], "one experiment to start from, as experiment=grpo, but got none"),
        (["--method", "mine", "--overrides", "experiment=grop"], "(?s)methods.mine .*grop"),
        (["--method", "mine", "--overrides", "experiment=grpo", "loss.clip=1"], "(?s)methods.mine .*clip"),
        (
            ["--method", "mine", "--overrides", "experiment=grpo", "seed=3", "data=countdown"],
            "seed=3 data=countdown",
        ),
        (["--method", "mine", "--overrides", "experiment=grpo", "~callbacks.pass_at_k"], "leave alone"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_made(arguments, message, monkeypatch):
    monkeypatch.setattr(run, "make_starters", None)
    monkeypatch.setattr(sys, "argv", ["run", *arguments])
    with pytest.raises(SystemExit, match=message):
        main()


def test_starters_that_are_missing_are_made_once(monkeypatch, tmp_path):
    made = []

    def call(command, **_):
        made.append(command[command.index("--task") :])
        folder = Path(command[-1])
        folder.mkdir(parents=True)
        (folder / "warmstart.json").write_text("{}")

    monkeypatch.setattr(run, "STARTERS", tmp_path)
    monkeypatch.setattr(run.subprocess, "run", call)
    for _ in range(2):
        make_starters(["countdown/easy", "arithmetic/mixed"], [0, 1], 1)
    expected = [(task, seed) for seed in "01" for task in ("countdown", "arithmetic")]
    assert made == [["--task", t, "--seed", s, "--output", tmp_path / t / f"seed{s}"] for t, s in expected]


CELLS = [(preset, setting) for preset, settings in GRIDS.items() for setting in settings]


@pytest.mark.parametrize(("preset", "setting"), CELLS)
def test_every_run_of_a_grid_composes_and_is_that_of_the_digest(preset, setting):
    assert set(GRIDS) == {path.stem for path in (CONFIGS / "compare").glob("*.yaml")}
    task, _, regime = setting.partition("/")
    then = {
        r["method"]: shlex.split(r["command"])
        for r in kept()[0]
        if setting_of(r) == setting and r["seed"] == 0
    }
    runs = grid(preset, setting, [0])
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        for each in runs:
            cfg = compose(
                "train", [part for part in each.command[3:] if not part.startswith("hydra.run.dir")]
            )
            assert (cfg.data.train.regime, cfg.iterations) == (regime, 0 if each.method == BASE else 40)
            assert cfg.optimizer.lr == (1e-4 if task == "arithmetic" else 3e-4)
            assert cfg.get("advantage", {}).get("k", 4) == 4
            # Monitors and folders are not what a method is.
            now, past = (
                {part for part in parts[3:] if not part.startswith(("callbacks=", "hydra.run.dir="))}
                for parts in (each.command, then[each.method])
            )
            assert now == past - {"resume=auto", "export=true"}


def test_the_grids_have_every_method_of_the_digest():
    names = {each.method for preset, setting in CELLS for each in grid(preset, setting, [0])}
    assert names == {each["method"] for each in kept()[0]}
