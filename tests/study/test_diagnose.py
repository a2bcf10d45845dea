"""`tagrpo-eval diagnose=<run>`: TA-GRPO's Figs. 3 and 4 over the checkpoints that a run has kept."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import combinations
from math import sqrt
from statistics import fmean

import pytest
import torch
from lightning.pytorch import Callback

from tagrpo.analysis.diagnosis import COLUMNS
from tagrpo.analysis.runs import by_method, find_directories
from tagrpo.callbacks import RolloutCallback, TrainingSignal
from tagrpo.cli.train import train
from tagrpo.metrics.functional import t_intervals
from tagrpo.report.assemble import page_content, write_report
from tagrpo.runs.directory import checkpoints_in, end
from tagrpo.runs.secrets import save_resolved
from tagrpo.settings.checks import read_questions
from tagrpo.settings.config import build, compose_run
from tagrpo.settings.numbers import check_numbers
from tagrpo.study.evaluate import ask_training_questions, diagnose, kept_checkpoints

RUN = [
    "experiment=ta_grpo", "data.train.size=12", "data.batch_size=4", "data.samples_per_prompt=4", "logger=csv",
    "rollout.sampling.max_new_tokens=16", "optimizer.lr=1e-2", "data.num_rephrasings=2", "seed=3",
    "data.evaluation_samples=2", "callbacks.pass_at_k.ks=[1,2]",
    "data.evaluation.test_id.size=4", "~data.evaluation.test_phrasing", "~data.evaluation.test_size",
]  # fmt: skip
TRAINED = ["callbacks=[checkpoint,pass_at_k]", "trainer.limit_val_batches=0", "name=small"]


def composed(name, directory, *overrides):
    return compose_run(directory, overrides, name)


def trained(directory, *overrides):
    cfg = composed("train", directory, *RUN, *TRAINED, *overrides)
    run = build(cfg)
    save_resolved(cfg, directory)
    try:
        train(run.module, run.datamodule, run.trainer)
    finally:
        run.close()
    end(directory)
    return directory


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of four iterations that has kept a checkpoint at each quarter."""
    directory = tmp_path_factory.mktemp("runs") / "small" / "seed3"
    keeping = ["callbacks.checkpoint.keep=1", "callbacks.checkpoint.fractions=[0.25,0.5,0.75]"]
    return trained(directory, "iterations=4", "callbacks.checkpoint.every=10", *keeping)


def letters(**_):
    """An encoder without a network: how often each letter occurs."""
    alphabet = "abcdefghijklmnopqrstuvwxyz0123456789+-*=# "
    return lambda texts: torch.tensor([[1.0 + text.count(letter) for letter in alphabet] for text in texts])


class Seen(Callback):
    """Keeps what was sampled, and a number that tells the weights of the policy apart."""

    def __init__(self):
        self.batches = []

    def on_test_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
        weights = float(sum(p.detach().double().abs().sum() for p in pl_module.policy.parameters()))
        self.batches.append((weights, batch))


@pytest.fixture(scope="module")
def diagnosed(finished):
    """Runs the diagnosis; returns what it wrote and what it sampled."""

    def run(*overrides, of=finished):
        cfg = composed(
            "evaluate", of / "diagnose", *RUN, f"diagnose={of}", "diagnose_questions=6", *overrides
        )
        ask_training_questions(cfg)
        built = build(cfg)
        read_questions(cfg, built, trains=False)
        seen = Seen()
        built.trainer.callbacks = [*built.trainer.callbacks, seen]
        try:
            files = diagnose(cfg, built)
        finally:
            built.close()
        assert all((of / "diagnose" / name).stat().st_size > 100 for name in files)
        return json.loads((of / "diagnose" / "diagnose.json").read_text()), seen.batches

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tagrpo.callbacks.sentence_encoder", letters)
        yield run


@pytest.fixture(scope="module")
def measured(diagnosed):
    """The diagnosis of `finished`: what it wrote and what it sampled."""
    return diagnosed()


def distance(texts):
    """Mean of 1 − cosine over all pairs, one by one."""
    vectors = letters()(texts).tolist()

    def cosine(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True)) / sqrt(
            sum(x * x for x in a) * sum(y * y for y in b)
        )

    return fmean(1 - cosine(a, b) for a, b in combinations(vectors, 2))


def test_every_number_is_that_of_the_responses_counted_one_by_one(measured):
    content, batches = measured
    assert [(point["iteration"], point["share"]) for point in content["checkpoints"]] == [
        (0, 0), (1, 0.25), (2, 0.5), (3, 0.75), (4, 1)
    ]  # fmt: skip
    assert content["finished"]
    weights = list(dict.fromkeys(weights for weights, _ in batches))
    for point, policy in zip(content["checkpoints"], weights, strict=True):
        rows = {row["id"]: row for row in point["questions"]}
        assert len(rows) == 6
        for batch in (batch for own, batch in batches if own == policy):
            r = batch.rollouts
            for place, group in enumerate(batch.groups):
                mine = [i for i in range(len(r)) if r.question[i] == place]
                original = [i for i in mine if r.rephrasing[i] == 0]
                others = [i for i in mine if r.rephrasing[i] > 0]
                assert (len(original), len(others)) == (4, 8)
                verdicts = {name: [bool(r.correct[i]) for i in rows] for name, rows in
                            {"original": original, "rephrasings": others, "pool": mine}.items()}  # fmt: skip
                fours = [len(set(four)) == 1 for four in combinations(verdicts["rephrasings"], 4)]
                expected = {f"uniform_reward/{n}": 100 * (len(set(v)) == 1) for n, v in verdicts.items()}
                expected["uniform_reward/rephrasings_matched"] = 100 * fmean(fours)
                expected |= {f"correct/{n}": 100 * fmean(verdicts[n]) for n in ("original", "rephrasings")}
                pools = {"original": original, "rephrasings": others, "pool": mine}
                expected |= {
                    f"embedding_distance/{n}": distance([r.text[i] for i in rows])
                    for n, rows in pools.items()
                }
                found = dict(rows.pop(group.id))
                assert found.pop("id") == group.id
                assert found == pytest.approx(expected, abs=1e-5)
        assert not rows


def test_each_number_has_its_interval(measured):
    content, _ = measured
    for point in content["checkpoints"]:
        for name in (name for name in point["questions"][0] if name in COLUMNS):
            values = torch.tensor([row[name] for row in point["questions"]])
            assert point["metrics"][name] == pytest.approx(
                {**t_intervals(values[:, None])[0]._asdict(), "n": 6}
            )


def test_base_and_checkpoints_are_the_policies_that_the_run_had(measured, finished, tmp_path):
    _, batches = measured
    weights = list(dict.fromkeys(weights for weights, _ in batches))
    for path, found in zip(checkpoints_in(finished / "checkpoints").values(), weights[1:], strict=True):
        state = torch.load(path, weights_only=True)["state_dict"]
        # A tied head is in the state twice.
        tensors = {tensor.data_ptr(): tensor for tensor in state.values()}
        assert float(sum(t.double().abs().sum() for t in tensors.values())) == pytest.approx(found, rel=1e-12)
    model = build(composed("train", tmp_path, *RUN)).module.load_model()
    assert float(sum(p.detach().double().abs().sum() for p in model.parameters())) == pytest.approx(
        weights[0]
    )


def test_what_was_measured_is_not_measured_again_and_other_questions_are(measured, diagnosed, finished):
    first, _ = measured
    files = [path for path in finished.rglob("*") if path.is_file() and "diagnose" not in path.parts]
    before = {path: path.stat().st_mtime_ns for path in files}
    again, batches = diagnosed()
    assert again == first
    assert not any(batch.prompts for _, batch in batches), "nothing was sampled"
    fewer, batches = diagnosed("diagnose_questions=5")
    assert len(batches) == 5
    assert {row["id"] for row in fewer["checkpoints"][0]["questions"]} < {
        row["id"] for row in first["checkpoints"][0]["questions"]
    }
    assert before == {path: path.stat().st_mtime_ns for path in before}, "the run is as it was"


@pytest.mark.runs
def test_all_training_questions_are_asked_as_in_training(diagnosed):
    greedy = "rollout.evaluation_sampling.temperature=0"
    content, batches = diagnosed("diagnose_questions=null", "data.evaluation_batch_size=5", greedy)
    assert [len(batch.groups) for _, batch in batches] == [5, 5, 2] * 5
    assert all(len(point["questions"]) == 12 for point in content["checkpoints"])
    assert {(p.rephrasing, p.num_samples) for _, batch in batches for p in batch.prompts} == {
        (0, 4),
        (1, 4),
        (2, 4),
    }
    assert all(len(ids) <= 16 for _, batch in batches for ids in batch.rollouts.token_ids)


@pytest.mark.runs
def test_a_run_without_rephrasings_can_be_asked_its_own_questions_or_rephrasings(tmp_path, diagnosed):
    grpo = trained(tmp_path / "grpo", "experiment=grpo", "data.num_rephrasings=0", "iterations=2")
    alone, _ = diagnosed("data.num_rephrasings=0", of=grpo)
    assert set(alone["checkpoints"][0]["metrics"]) == {
        "uniform_reward/original", "uniform_reward/pool", "embedding_distance/original", "correct/original"
    }  # fmt: skip
    assert [point["iteration"] for point in alone["checkpoints"]] == [0, 2]
    rephrased, _ = diagnosed(of=grpo)
    assert rephrased["checkpoints"][1]["metrics"]["uniform_reward/rephrasings"]["n"] == 6


def test_the_nearest_checkpoints_stand_for_those_that_are_gone(finished, tmp_path, capsys):
    for number in (10, 24, 30, 40):
        (tmp_path / "checkpoints").mkdir(exist_ok=True)
        (tmp_path / "checkpoints" / f"iteration-{number:06d}.ckpt").write_bytes(
            (finished / "checkpoints" / "iteration-000001.ckpt").read_bytes()
        )
    assert list(kept_checkpoints(tmp_path)) == [10, 24, 30, 40]
    told = capsys.readouterr().out
    assert "near 50 % of training" in told
    assert "callbacks.checkpoint.fractions" in told
    (tmp_path / "checkpoints" / "iteration-000010.ckpt").unlink()
    assert list(kept_checkpoints(tmp_path)) == [24, 30, 40]


def test_a_rank_without_questions_has_no_rows(make_batch):
    batch = make_batch([[[1.0, 0.0], [1.0, 1.0]]])
    none = torch.zeros(0, dtype=torch.long)
    rollouts = replace(
        batch.rollouts, question=none, rephrasing=none, rewards=none.float(), correct=none.bool()
    )
    signal = TrainingSignal(None, list)
    signal.on_test_batch_end(None, None, None, replace(batch, groups=[], rollouts=rollouts))
    assert signal.questions == []
    signal.on_test_batch_end(None, None, None, batch)
    (row,) = signal.questions
    assert row == {
        "id": "q0", "uniform_reward/original": 0, "uniform_reward/rephrasings": 100, "uniform_reward/pool": 0,
        "uniform_reward/rephrasings_matched": 100, "correct/original": 50, "correct/rephrasings": 100,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.train.size=11"], "data.train.size: 12 then, 11 now"),
        (["seed=4"], "seed: 3 then, 4 now"),
        (["model.path=/another/model"], "model.path: .* then, /another/model now"),
        (["rollout.sampling.max_new_tokens=17"], "rollout.sampling.max_new_tokens: 16 then, 17 now"),
        (["exact=true"], "without exact"),
        (["diagnose=nowhere"], "no config.yaml"),
    ],
)
def test_another_experiment_than_the_runs_is_refused(finished, tmp_path, overrides, message):
    cfg = composed("evaluate", tmp_path, *RUN, f"diagnose={finished}", *overrides)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        ask_training_questions(cfg)


@pytest.mark.parametrize("wrong", ["0", "-1", "1.5", "some"])
def test_the_number_of_questions_is_checked_with_all_other_numbers(finished, tmp_path, wrong):
    cfg = composed("evaluate", tmp_path, *RUN, f"diagnose={finished}", f"diagnose_questions={wrong}")
    ask_training_questions(cfg)
    with pytest.raises(ValueError, match="diagnose_questions"):
        check_numbers(cfg)


def test_the_report_has_the_numbers(measured, finished):
    content, _ = measured
    (finished / "diagnose" / "diagnose.json").write_text(json.dumps(content))  # others asked other questions
    write_report(finished.parents[1])
    report = (finished.parents[1] / "report.md").read_text()
    section = report.partition("## Training questions, original against rephrasings")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| small")]
    assert [row[1] for row in rows] == ["base", "25 %", "50 %", "75 %", "100 %"]
    for row, point in zip(rows, content["checkpoints"], strict=True):
        assert row[2].startswith(f"{point['metrics']['uniform_reward/original']['value']:.1f} [")
        assert row[-1].startswith("6")
    page = page_content(by_method(find_directories(finished)))
    (shown,) = (table for table in page["tables"] if table["title"].startswith("Training questions"))
    assert [row[0] for row in shown["rows"]] == ["small seed 3"] * 5
    figures = {figure["title"]: figure["panels"] for figure in page["figures"]}
    drawn = figures["Training questions with equal rewards, asked again"][0]["series"][0]
    assert (drawn["label"], drawn["x"]) == ("original (G)", [0, 25, 50, 75, 100])
    expected = [point["metrics"]["uniform_reward/original"] for point in content["checkpoints"]]
    for ours, theirs in (("y", "value"), ("low", "low"), ("high", "high")):
        assert drawn[ours] == pytest.approx([metric[theirs] for metric in expected])
    original, _ = figures["How different the responses to a question are (TA-GRPO, Fig. 4)"]
    last = sorted(row["embedding_distance/original"] for row in content["checkpoints"][-1]["questions"])
    assert (original["series"][-1]["label"], original["series"][-1]["x"]) == ("100 %", last)


def test_the_training_split_is_asked_as_in_training_wherever_it_is_evaluated(tmp_path):
    cfg = composed("train", tmp_path, *RUN, "experiment=grpo", "callbacks=[pass_at_k]", "iterations=1",
                   "+data.evaluation.train=${data.train}", "data.num_rephrasings=1")  # fmt: skip
    built = build(cfg)
    built.datamodule.setup("fit")
    loader = built.datamodule.evaluation_loaders(samples=3)["train"]
    batch = next(iter(loader))
    assert [group.id for group in batch.groups] == [f"train-mixed-3-{i:05d}" for i in range(12)], (
        "in their order"
    )
    assert Counter((p.rephrasing, p.num_samples) for p in batch.prompts) == {(0, 3): 12, (1, 3): 12}
    assert isinstance(built.rollout, RolloutCallback)


def test_random_questions_of_a_split_stay_the_same(tmp_path):
    chosen = []
    for seed in (3, 3, 4):
        built = build(composed("train", tmp_path, *RUN, f"data.seed={seed}"))
        built.datamodule.setup("fit")
        built.datamodule.keep_some("train", 5)
        chosen.append([group.id for group in built.datamodule.train_dataloader().groups])
    assert chosen[0] == chosen[1] == sorted(chosen[0])
    assert len(set(chosen[0])) == 5
    assert chosen[2] != chosen[0]
