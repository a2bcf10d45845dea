"""Every notebook runs from top to bottom on the files of small runs, and shows pictures; so do those that it keeps."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pandas as pd
import pytest

from tagrpo.cli.train import train
from tagrpo.runs.secrets import save_resolved
from tagrpo.settings.config import build, compose_run

pytestmark = pytest.mark.pages

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
PICTURES = {"comparison": 4, "diagnostics": 5, "estimators": 2, "objectives": 3, "rephrasings": 1, "study": 3}
SMALL = [
    "logger=csv", "callbacks=[throughput,zero_gradient,rephrasing_success,pass_at_k,recorder]", "data.train.size=16",
    "data.batch_size=4", "data.samples_per_prompt=4", "data.evaluation_samples=4", "data.evaluation.test_id.size=6",
    "data.evaluation.test_phrasing.size=3", "data.evaluation.test_size.size=3", "+trainer.enable_progress_bar=false",
    "trainer.limit_val_batches=0", "rollout.sampling.max_new_tokens=20",
]  # fmt: skip


def run(directory: Path, *overrides: str) -> None:
    cfg = compose_run(directory, [*SMALL, *overrides])
    built = build(cfg)
    save_resolved(cfg, directory)
    train(built.module, built.datamodule, built.trainer)
    built.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """An untrained policy and two trained ones, five iterations each."""
    root = tmp_path_factory.mktemp("runs")
    run(root / "base" / "seed0", "experiment=grpo", "name=base", "iterations=0")
    for method in ("grpo", "ta_grpo"):
        run(root / method / "seed0", f"experiment={method}", "iterations=5")
    rows = [
        (i, f"q{i % 4}", pool, 4, 0.05 * i) for i in range(5) for pool in ("original", "rephrasings", "pool")
    ]
    frame = pd.DataFrame(rows, columns=["iteration", "question", "pool", "responses", "distance"])
    frame.to_csv(root / "ta_grpo" / "seed0" / "embedding_diversity.csv", index=False)
    return root


def shown(source: str, names: dict[str, object]) -> object:
    """Run a cell; the value of its last expression, as a notebook shows it."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_on_the_files_of_a_run(notebook, monkeypatch, runs, capsys):
    monkeypatch.setenv("TAGRPO_RUNS", str(runs))
    monkeypatch.syspath_prepend(notebook.parent)
    names: dict[str, object] = {}
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    results = [shown("".join(cell["source"]), names) for cell in cells]
    pictures = [result._repr_png_() for result in results if hasattr(result, "_repr_png_")]
    assert len(pictures) == PICTURES[notebook.stem]
    assert all(picture.startswith(b"\x89PNG") and len(picture) > 5000 for picture in pictures)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_keeps_the_pictures_of_the_demo(notebook):
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == PICTURES[notebook.stem]
    assert not [output for output in outputs if output["output_type"] == "error"]


def test_a_file_of_rephrasings_is_audited_instead_of_those_of_the_run(monkeypatch, runs, tmp_path):
    row = {
        "id": "1",
        "question": "What is 1 + 2?",
        "answer": "3",
        "rephrasings": ["Add 1 to 2.", "What is 1 + 5?"],
    }
    path = tmp_path / "rephrased.jsonl"
    path.write_text(json.dumps(row) + "\n")
    monkeypatch.setenv("TAGRPO_RUNS", str(runs))
    monkeypatch.setenv("TAGRPO_REPHRASINGS", str(path))
    names: dict[str, object] = {}
    notebook = next(path for path in NOTEBOOKS if path.stem == "rephrasings")
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    for cell in cells[:5]:
        shown("".join(cell["source"]), names)
    refused = names["refused"]
    assert set(refused["text"]) == {"What is 1 + 5?"}
    assert "numbers_kept" in set(refused["check"])
