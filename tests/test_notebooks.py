"""Every notebook runs from top to bottom on the files of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_on_the_files_of_a_run(notebook, tmp_path, monkeypatch, write_run):
    for method in ("base", "grpo", "ta_grpo"):
        write_run(tmp_path, method, 0, [1, 2, 3, 4])
    monkeypatch.setenv("TAGRPO_RUNS", str(tmp_path))
    names: dict[str, object] = {}
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), str(notebook), "exec"), names)
    assert list(names["trained"]) == ["base", "grpo", "ta_grpo"]
