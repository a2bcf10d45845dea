"""Evaluation counts: by hand, in any order, and gone on with after a break."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader

from tagrpo.callbacks import PassAtKEvaluator
from tagrpo.callbacks.shared import keep_questions
from tagrpo.rollouts.dynamic_sampling import take_questions


class Module(LightningModule):
    """Does nothing; evaluation happens in callbacks."""

    def test_step(self, batch, batch_idx):
        pass


class Sample(Callback):
    """Stands in for sampling: attaches the rollouts of the questions that are left in the batch."""

    def __init__(self, batches, fail_at=None):
        self.batches = batches
        self.fail_at = fail_at
        self.sampled = []

    def on_test_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0):
        if batch_idx == self.fail_at:
            raise RuntimeError("the machine went away")
        whole = self.batches[batch_idx]
        ids = [group.id for group in batch.groups]
        rows = torch.tensor(
            [row for row, group in enumerate(whole.groups) if group.id in ids], dtype=torch.long
        )
        batch.rollouts = take_questions(whole, rows).rollouts
        self.sampled += ids


def evaluate(
    folder, batches, *, fail_at=None, ks=(1, 2, 4, 8), averages=None, store=None, identify=None, taus=()
):
    sample = Sample(batches, fail_at)
    evaluator = PassAtKEvaluator(ks, averages, store, taus)
    if evaluator.store is not None:
        evaluator.store.identify = identify
    trainer = Trainer(
        default_root_dir=folder,
        callbacks=[evaluator, sample],
        logger=False,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.test(
        Module(), DataLoader([replace(b, rollouts=None) for b in batches], batch_size=None), verbose=False
    )
    return sample.sampled, trainer


@pytest.fixture
def batches(make_batch):
    """Three batches of two splits with question ids of their own."""
    rewards = (
        [[[1.0, 0.0, 0.0, 0.0]], [[0.0] * 4]],
        [[[1.0, 1.0, 0.0, 0.0]]],
        [[[1.0] * 4], [[0.0, 1.0, 0.0, 0.0]]],
    )
    made = []
    for number, (values, split) in enumerate(zip(rewards, ("easy", "hard", "hard"), strict=True)):
        batch = make_batch(list(values), seed=number)
        groups = [group._replace(id=f"{number}-{row}") for row, group in enumerate(batch.groups)]
        made.append(replace(batch, split=split, groups=groups))
    return made


def test_pass_at_k_is_reported_with_its_counts(tmp_path, batches):
    _, trainer = evaluate(tmp_path, batches)
    report = json.loads((tmp_path / "test.json").read_text())["splits"]
    values = {split: {k: x["value"] for k, x in s["pass_at_k"].items()} for split, s in report.items()}
    assert values["easy"] == {"1": 0.125, "2": 0.25, "4": 0.5}, "k=8 exceeds the four samples"
    assert values["hard"]["2"] == pytest.approx((5 / 6 + 1 + 0.5) / 3)
    assert [(q["id"], q["n"], q["correct"]) for q in report["easy"]["questions"]] == [
        ("0-0", 4, 1),
        ("0-1", 4, 0),
    ]
    assert trainer.callback_metrics["pass@k/hard/2"] == pytest.approx((5 / 6 + 1 + 0.5) / 3)
    assert (tmp_path / "evaluations" / "test-000000.json").read_text() == (tmp_path / "test.json").read_text()


def test_cover_is_the_share_of_questions_that_reach_each_threshold_and_only_where_it_is_asked_for(
    tmp_path, batches
):
    _, trainer = evaluate(tmp_path, batches, taus=[0.25, 0.5, 1])
    report = json.loads((tmp_path / "test.json").read_text())["splits"]
    found = {split: {tau: x["value"] for tau, x in s["cover_at_tau"].items()} for split, s in report.items()}
    # Correct of four: 1 and 0 in the one split; 2, 4 and 1 in the other.
    assert found["easy"] == {"0.25": 0.5, "0.5": 0.0, "1": 0.0}
    assert found["hard"] == pytest.approx({"0.25": 1.0, "0.5": 2 / 3, "1": 1 / 3})
    bounds = report["hard"]["cover_at_tau"]["0.5"]
    assert 0 == bounds["low"] < bounds["value"] < bounds["high"] == 1
    assert trainer.callback_metrics["cover@tau/hard/0.5"] == pytest.approx(2 / 3)
    _, trainer = evaluate(tmp_path / "none", batches)
    assert not any(name.startswith("cover") for name in trainer.callback_metrics)
    assert "cover" not in (tmp_path / "none" / "test.json").read_text()
    with pytest.raises(ValueError, match=r"\[0.5.*50\]"):
        PassAtKEvaluator(taus=[0.5, 50])


def test_groups_of_splits_are_averaged_where_all_of_them_were_evaluated(tmp_path, batches):
    groups = {"both": ["easy", "hard"], "more": ["easy", "others"]}
    _, trainer = evaluate(tmp_path, batches, averages=groups)
    # pass@1: 1/4 and 0 in the one split; 1/2, 1 and 1/4 in the other.
    by_split, by_question = (1 / 8 + 7 / 12) / 2, (1 / 4 + 0 + 1 / 2 + 1 + 1 / 4) / 5
    found = json.loads((tmp_path / "test.json").read_text())["groups"]
    assert list(found) == ["both"]
    assert (found["both"]["splits"], found["both"]["num_questions"]) == (["easy", "hard"], 5)
    assert list(found["both"]["by_question"]) == ["1", "2", "4"]
    for key, name, mean in (("pass_at_k", "average", by_split), ("by_question", "by_question", by_question)):
        point = found["both"][key]["1"]
        assert point["low"] < point["value"] < point["high"]
        assert point["value"] == pytest.approx(mean)
        assert trainer.callback_metrics[f"pass@k_{name}/both/1"] == pytest.approx(mean)
    _, trainer = evaluate(tmp_path / "none", batches)
    assert not any(name.startswith(("pass@k_average", "pass@k_by")) for name in trainer.callback_metrics)
    assert json.loads((tmp_path / "none" / "test.json").read_text())["groups"] == {}


def test_a_group_without_splits_is_refused():
    with pytest.raises(ValueError, match=r"averages\.mine"):
        PassAtKEvaluator(averages={"mine": []})


def test_an_evaluation_goes_on_where_it_broke_off(tmp_path, batches):
    sampled, _ = evaluate(tmp_path / "whole", batches, store=tmp_path / "whole" / "counts")
    assert len(sampled) == 5
    store = tmp_path / "broken" / "counts"
    with pytest.raises(RuntimeError, match="went away"):
        evaluate(tmp_path / "broken", batches, fail_at=2, store=store)
    with (store / "0.jsonl").open("a") as file:
        file.write('{"split": "hard", "id": "2-0", "tal')  # it died in the middle of a line
    sampled, _ = evaluate(tmp_path / "broken", batches, store=store)
    assert sampled == ["2-0", "2-1"], "what was counted is not sampled again"
    assert (tmp_path / "broken" / "test.json").read_text() == (tmp_path / "whole" / "test.json").read_text()
    sampled, _ = evaluate(tmp_path / "broken", batches, store=store)
    assert sampled == []
    assert (tmp_path / "broken" / "test.json").read_text() == (tmp_path / "whole" / "test.json").read_text()


def test_where_the_store_has_too_few_samples_all_are_drawn_anew(tmp_path, batches, make_batch):
    """The first four would be the same responses again, as the seed of a batch is the same."""
    store = tmp_path / "counts"
    evaluate(tmp_path, batches[:1], store=store)
    more = make_batch([[[1.0] * 6], [[0.0] * 6]])
    more = replace(more, split="easy", groups=batches[0].groups)
    sampled, _ = evaluate(tmp_path, [more], store=store)
    assert sampled == ["0-0", "0-1"]
    report = json.loads((tmp_path / "test.json").read_text())["splits"]["easy"]
    assert [(q["n"], q["correct"]) for q in report["questions"]] == [(6, 6), (6, 0)]
    assert evaluate(tmp_path, [more], store=store)[0] == []
    assert json.loads((tmp_path / "test.json").read_text())["splits"]["easy"] == report


def test_counts_of_another_identity_are_left_aside_and_found_again(tmp_path, batches, caplog):
    def sampled(weights):
        return evaluate(
            tmp_path, batches[:1], store=tmp_path / "counts", identify=lambda: {"weights": weights}
        )[0]

    assert sampled("a") == ["0-0", "0-1"]
    assert sampled("a") == []
    with caplog.at_level("INFO", logger="lightning.pytorch.utilities.rank_zero"):
        assert sampled("b") == ["0-0", "0-1"]
    assert "the most similar one before differs in weights" in caplog.text.lower()
    assert sampled("a") == []


def as_mapping(batch):
    """The batch of another project: a mapping, with prompts that are mappings."""
    prompts = [
        {name: getattr(prompt, name) for name in ("question", "num_samples")} for prompt in batch.prompts
    ]
    return {
        "split": batch.split,
        "groups": list(batch.groups),
        "prompts": prompts,
        "rollouts": batch.rollouts,
    }


def test_a_store_takes_batches_that_are_mappings(tmp_path, batches):
    class SampleMapping(Sample):
        def on_test_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0):
            view = SimpleNamespace(groups=batch["groups"], prompts=batch["prompts"])
            super().on_test_batch_start(trainer, pl_module, view, batch_idx)
            batch["rollouts"] = view.rollouts

    def run(folder, fail_at=None):
        evaluator, sample = (
            PassAtKEvaluator((1, 2, 4), store=folder / "counts"),
            SampleMapping(batches, fail_at),
        )
        trainer = Trainer(
            default_root_dir=folder, callbacks=[evaluator, sample], logger=False, accelerator="cpu",
            enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        )  # fmt: skip
        given = [{**as_mapping(batch), "rollouts": None} for batch in batches]
        trainer.test(Module(), DataLoader(given, batch_size=None), verbose=False)
        return sample.sampled

    with pytest.raises(RuntimeError, match="went away"):
        run(tmp_path, fail_at=2)
    assert run(tmp_path) == ["2-0", "2-1"]
    evaluate(tmp_path / "objects", batches, ks=(1, 2, 4))
    ours, theirs = (
        json.loads((folder / "test.json").read_text()) for folder in (tmp_path, tmp_path / "objects")
    )
    assert ours == theirs


def test_an_id_in_two_batches_is_refused_where_counts_are_stored(tmp_path, batches):
    again = replace(batches[0], groups=batches[0].groups)
    with pytest.raises(ValueError, match=r"callbacks\.pass_at_k\.store.*'0-[01]' of easy"):
        evaluate(tmp_path, [batches[0], again], store=tmp_path / "counts")


STRAYS = (
    "copied",
    "copied under a name",
    "of another evaluation",
    "of questions that are not asked",
    "not JSON",
)


@pytest.mark.parametrize("stray", STRAYS)
def test_what_is_not_of_an_evaluation_or_is_of_it_twice_does_not_change_its_result(stray, tmp_path, batches):
    def run(folder, weights="a", asked=batches):
        return evaluate(folder, asked, store=folder / "counts", identify=lambda: {"weights": weights})[0]

    run(tmp_path)
    expected = (tmp_path / "test.json").read_text()
    (file,) = (tmp_path / "counts").glob("*/0.counts")
    if stray == "copied":
        shutil.copy(file, file.with_name("1.counts"))
    elif stray == "copied under a name":
        shutil.copy(file, file.with_name("0 (copy).counts"))
    elif stray == "of another evaluation":
        run(tmp_path / "other", "b")
        (other,) = (tmp_path / "other" / "counts").glob("*/0.counts")
        shutil.copy(other, file.with_name("1.counts"))
    elif stray == "of questions that are not asked":
        more = replace(
            batches[0], groups=[group._replace(id=f"new {group.id}") for group in batches[0].groups]
        )
        run(tmp_path, asked=[more])
    else:
        file.with_name("1.counts").write_bytes(b"\xff\x00\n00000000\t{}\n")
    with pytest.warns(UserWarning, match="Skipping"):
        assert run(tmp_path) == []
    assert (tmp_path / "test.json").read_text() == expected


@pytest.mark.parametrize("text", ["{", "[]", '{"weights": 1}', "\xff"])
def test_the_damage_of_another_evaluation_harms_nobody(text, tmp_path, batches):
    def run(weights):
        return evaluate(
            tmp_path, batches[:1], store=tmp_path / "counts", identify=lambda: {"weights": weights}
        )[0]

    run("a")
    (identity,) = (tmp_path / "counts").glob("*/identity.json")
    identity.write_bytes(text.encode("latin-1"))
    assert run("b") == ["0-0", "0-1"]
    assert run("a") == [], "nor the same one"


def test_keeping_questions_renumbers_their_prompts(make_batch):
    batch = replace(make_batch([[[1.0], [0.0]], [[1.0]], [[0.0], [1.0]]]), rollouts=None)
    keep_questions(batch, [True, False, True])
    assert [group.id for group in batch.groups] == ["q0", "q2"]
    assert [(p.question, p.rephrasing) for p in batch.prompts] == [(0, 0), (0, 1), (1, 0), (1, 1)]
