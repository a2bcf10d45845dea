"""The examples run, and show that diagnostics need nothing else of this package."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tagrpo.analysis.difficulty import difficulty_of_run
from tagrpo.analysis.rollouts import read_rollouts
from tagrpo.lab.replay import replay
from tagrpo.modules.advantages import GroupAdvantage

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_foreign_project_borrows_only_callbacks_and_metrics():
    imported = set()
    for node in ast.walk(ast.parse((EXAMPLES / "guessing.py").read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        imported |= {*names, node.module} if isinstance(node, ast.ImportFrom) else set(names)
    assert {name for name in imported if name.startswith("tagrpo")} == {"tagrpo.callbacks", "tagrpo.metrics"}


@pytest.fixture(scope="module")
def guessed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guessing")
    spec = importlib.util.spec_from_file_location("guessing", EXAMPLES / "guessing.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["guessing"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return folder, module.main(folder)


def test_the_foreign_module_learns_and_every_callback_measures(guessed):
    folder, metrics = guessed
    rows = pd.read_csv(folder / "metrics.csv").dropna(subset=["zero_gradient/percentage"])
    assert len(rows) == 3 * 16
    success = rows["rephrasing/0/correct"]
    assert success.iloc[-8:].mean() > success.iloc[:8].mean() + 0.1
    assert rows["uniform_reward/rephrasings"].notna().all()
    assert rows["rephrasing/1/effective_samples"].between(0, 1.0001).all()
    assert rows["answer_diversity/entropy"].iloc[-8:].mean() < rows["answer_diversity/entropy"].iloc[:8].mean()
    # One direction per text: the distance is the chance that two responses differ.
    assert rows["embedding_distance/pool"].dropna().between(0, 1).all()
    assert set(pd.read_csv(folder / "embedding_diversity.csv")["pool"]) == {"original", "rephrasings", "pool"}
    (split,) = json.loads((folder / "test.json").read_text())["splits"]
    assert split == "digits"
    assert metrics["pass@k/digits/8"] > metrics["pass@k/digits/1"]
    assert metrics["pass@8"] >= metrics["pass@1"]


def test_its_rollouts_can_be_replayed_and_tested(guessed):
    folder, _ = guessed
    rollouts = read_rollouts(folder)
    assert len(rollouts) == 48 * 4 * 3 * 8
    logged = pd.read_csv(folder / "metrics.csv")["zero_gradient/percentage"].dropna().tolist()
    replayed = replay(rollouts, {"pooled": GroupAdvantage(group_by="question")})["zero_gradient"].tolist()
    assert replayed == pytest.approx(logged)
    early = rollouts[rollouts["iteration"] < 16]
    assert difficulty_of_run(early)[0].p_value < 1e-6, "its phrasings differ in difficulty by construction"


PLAIN = """
import sys
sys.path.insert(0, {folder!r})
import plain_torch
shares = plain_torch.main()
found = sorted({{name.split(".")[0] for name in sys.modules}} & {{"lightning", "pytorch_lightning", "hydra", "vllm"}})
print(shares[0], shares[-1], found)
"""


def test_the_pipeline_and_the_update_train_in_plain_torch():
    program = PLAIN.format(folder=str(EXAMPLES))
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    first, last, found = result.stdout.split(maxsplit=2)
    assert float(last) > float(first) + 0.1
    assert found.strip() == "[]"


def test_the_plain_script_is_short():
    (main,) = [
        node for node in ast.parse((EXAMPLES / "plain_torch.py").read_text()).body if isinstance(node, ast.FunctionDef)
    ]
    assert main.end_lineno - main.lineno < 30
