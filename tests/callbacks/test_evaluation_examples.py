"""Responses to some evaluation questions: the same questions each time, of all ranks and splits."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from lightning.pytorch import LightningModule

from tagrpo.callbacks import EvaluationExamples
from tagrpo.callbacks import evaluation_examples as here
from tagrpo.callbacks.evaluation_examples import in_turn


def trainer_in(folder, iteration=-1, testing=True):
    return SimpleNamespace(
        default_root_dir=str(folder), is_global_zero=True, sanity_checking=False, testing=testing,
        fit_loop=SimpleNamespace(total_batch_idx=iteration),
    )  # fmt: skip


@pytest.fixture
def batches(make_batch):
    """Nine questions of two splits in three batches; responses of which the first is right, and none of some."""
    made = []
    for number, split in enumerate(("easy", "hard", "hard")):
        batch = make_batch([[[1.0, 0.0, 0.0, 1.0]], [[0.0] * 4], [[1.0] * 4]], seed=number)
        groups = [
            group._replace(id=f"{number}-{row}", answer=("7", "8")) for row, group in enumerate(batch.groups)
        ]
        made.append(replace(batch, split=split, groups=groups))
    return made


def kept(folder, batches, callback, **options):
    trainer, module = trainer_in(folder, **options), LightningModule()
    callback.on_test_epoch_start(trainer, module)
    for number, batch in enumerate(batches):
        callback.on_test_batch_end(trainer, module, None, batch, number)
    callback.on_test_epoch_end(trainer, module)
    (file,) = (folder / "evaluations").glob("examples-*.json")
    return file.name, json.loads(file.read_text())


def test_every_question_has_its_prompt_counts_and_responses_right_and_wrong_in_turn(tmp_path, batches):
    name, found = kept(tmp_path, batches, EvaluationExamples(responses=3), iteration=4)
    assert name == "examples-test-000005.json"
    assert {split: sorted(of) for split, of in found.items()} == {
        "easy": ["0-0", "0-1", "0-2"],
        "hard": ["1-0", "1-1", "1-2", "2-0", "2-1", "2-2"],
    }
    one, rollouts = found["easy"]["0-0"], batches[0].rollouts
    assert (one["n"], one["correct"], one["reference"]) == (4, 2, ["7", "8"])
    assert one["prompt"] == rollouts.prompts[0].text
    assert [response["correct"] for response in one["responses"]] == [True, False, True]
    assert [response["text"] for response in one["responses"]] == [rollouts.text[row] for row in (0, 1, 3)]
    assert [response["correct"] for response in found["easy"]["0-1"]["responses"]] == [False] * 3


def test_the_same_questions_are_kept_in_any_order_of_batches_and_ranks(tmp_path, batches, monkeypatch):
    chosen = set()
    for number in range(4):
        order = random.Random(number).sample(batches, 3)
        _, found = kept(tmp_path / str(number), order, EvaluationExamples(questions=2), testing=False)
        chosen.add(json.dumps(found))
    # two ranks, one of which has the second split alone
    ranks = [EvaluationExamples(questions=2) for _ in range(2)]
    parts = []
    for callback, own in zip(ranks, (batches[:2], batches[2:]), strict=True):
        for batch in own:
            callback.on_validation_batch_end(trainer_in(tmp_path), LightningModule(), None, batch)
        parts.append(callback._found)
    monkeypatch.setattr(here, "gather_objects", lambda _: parts)
    ranks[0].on_validation_epoch_end(trainer_in(tmp_path / "ranks", testing=False), LightningModule())
    (file,) = (tmp_path / "ranks" / "evaluations").glob("examples-validation-000000.json")
    chosen.add(json.dumps(json.loads(file.read_text())))
    assert len(chosen) == 1
    assert {split: len(of) for split, of in json.loads(chosen.pop()).items()} == {"easy": 2, "hard": 2}


def test_long_and_broken_texts_are_cut_and_kept(tmp_path, batches):
    text = ["x" * 5000 + "\ud800 end", *batches[0].rollouts.text[1:]]
    batch = replace(batches[0], rollouts=replace(batches[0].rollouts, text=text))
    _, found = kept(tmp_path, [batch], EvaluationExamples())
    response = found["easy"]["0-0"]["responses"][0]["text"]
    assert len(response) == 2000
    assert response.endswith("\ud800 end")


def test_a_resumed_run_deletes_the_examples_of_later_iterations(tmp_path, batches):
    callback = EvaluationExamples()
    for iteration in (1, 4):
        callback.on_validation_batch_end(trainer_in(tmp_path), LightningModule(), None, batches[0])
        callback.on_validation_epoch_end(trainer_in(tmp_path, iteration, testing=False), LightningModule())
    callback.on_train_start(trainer_in(tmp_path, 1), LightningModule())
    assert [file.name for file in (tmp_path / "evaluations").iterdir()] == ["examples-validation-000002.json"]


@pytest.mark.parametrize("wrong", [{"questions": 0}, {"responses": 0}])
def test_numbers_below_one_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"callbacks.evaluation_examples.{name}.*0"):
        EvaluationExamples(**wrong)


def test_two_lists_in_turn_have_all_of_both():
    rng = random.Random(0)
    for _ in range(50):
        first, second = ([rng.random() for _ in range(rng.randrange(5))] for _ in range(2))
        found = in_turn(first, second)
        assert sorted(found) == sorted(first + second)
        assert [x for x in found if x in first] == first
        assert set(found[:2]) == {*first[:1], *second[:1]} or not (first and second)
