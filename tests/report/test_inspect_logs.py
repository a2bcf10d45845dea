"""Logs of Inspect hold the responses of the Parquet, read back by Inspect's own reader."""

from __future__ import annotations

import sys

import pandas as pd
import pytest

from tagrpo.report.inspect_logs import write_logs


def test_inspect_reads_every_response_back(trained, tmp_path):
    log = pytest.importorskip("inspect_ai.log", reason="inspect-ai is not installed: pip install 'tagrpo[inspect]'")
    (folder,) = write_logs(tmp_path / "logs", trained)
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == [f"iteration-{i:06d}.eval" for i in range(3)]
    read = log.read_eval_log(str(files[1]))
    theirs = pd.read_parquet(trained / "rollouts" / "000001-0.parquet").sort_values("question", kind="stable")
    assert read.status == "success"
    assert read.results.scores[0].metrics["share"].value == pytest.approx(theirs["correct"].mean())
    ours = {(sample.id, sample.epoch): sample for sample in read.samples}
    assert len(ours) == len(theirs) == 64
    for (question, rephrasing), rows in theirs.groupby(["question", "rephrasing"]):
        name = f"{question} · {f'rephrasing {rephrasing}' if rephrasing else 'original'}"
        for epoch, row in enumerate(rows.to_dict("records"), start=1):
            sample = ours[name, epoch]
            assert (sample.input, sample.target) == (row["prompt"], row["reference"].tolist())
            assert sample.output.completion == row["response"]
            assert sample.scores["verifier"].value == ("C" if row["correct"] else "I")
            assert sample.scores["verifier"].answer == row["answer"]
            assert sample.scores["reward"].value == pytest.approx(row["reward"])
            assert sample.metadata["advantage"] == pytest.approx(row["advantage"])


def test_without_inspect_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_ai.log", None)
    with pytest.raises(ImportError, match=r"pip install 'tagrpo\[inspect\]'"):
        write_logs(tmp_path, tmp_path)
