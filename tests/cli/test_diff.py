"""The settings of two runs, composed and compared."""

from __future__ import annotations

import sys

from tagrpo.cli import diff


def test_what_differs_has_both_values(capsys, monkeypatch):
    monkeypatch.setattr(
        sys, "argv", ["tagrpo-diff", "experiment=grpo", "experiment=grpo optimizer.lr=0.5 threads=3"]
    )
    diff.main()
    shown = [line.split("│")[1:4] for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row] for row in shown] == [
        ["optimizer.lr", "0.0001", "0.5"],
        ["threads", "1", "3"],
    ]


def test_the_same_settings_are_said_to_be_the_same(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tagrpo-diff", "experiment=ta_grpo", "experiment=ta_grpo recipe=paper"])
    diff.main()
    assert capsys.readouterr().out == "Nothing differs.\n"


def test_keys_of_one_side_only_are_absent_on_the_other():
    left, right = diff.settings(["experiment=grpo"]), diff.settings(["experiment=grpo_ds"])
    found = diff.changes(left, right, absent=diff.ABSENT)
    assert found["rollout.dynamic_sampling.pool"] == (diff.ABSENT, "prompt")
    assert found["name"] == ("grpo", "grpo_ds")


def test_settings_are_resolved_and_those_to_be_given_are_named():
    found = diff.settings(["experiment=dr_grpo", "scale=paper"])
    assert found["loss.max_length"] == found["rollout.sampling.max_new_tokens"]
    assert found["data.train.path"] == "???"
    assert found["policy.temperature"] == found["rollout.sampling.temperature"]


def test_a_setting_that_others_follow_is_shown_once(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tagrpo-diff", "experiment=grpo", "experiment=grpo loss.clip_high=0.3"])
    diff.main()
    assert [
        line.split("│")[1].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("│")
    ] == ["loss.clip_high"]


def test_lists_and_paths_are_shown_as_they_are(capsys, monkeypatch):
    both = ["data=jsonl data.train.path=a.jsonl callbacks=[default]", "data=jsonl data.train.path=[/a/b]"]
    monkeypatch.setattr(sys, "argv", ["tagrpo-diff", *both])
    diff.main()
    assert "['/a/b']" in capsys.readouterr().out
