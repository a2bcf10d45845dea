"""Sync, generate, score, attach: with a scripted engine inside a real trainer."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from tagrpo.callbacks import RolloutCallback
from tagrpo.rollouts import SamplingConfig
from tagrpo.rollouts.dynamic_sampling import DynamicSampling
from tagrpo.rollouts.replay import SuccessReplay
from tagrpo.types import Completion, Prompt, QuestionBatch, QuestionGroup, Score


class Engine:
    """Answers every prompt with the number of the sample, and remembers what it was asked."""

    def __init__(self):
        self.synced, self.seeds, self.closed = [], [], 0

    def sync(self, parameters):
        self.synced.append({name: tensor.clone() for name, tensor in parameters})

    def generate(self, prompts, num_samples, sampling, seed):
        self.seeds.append(seed)
        return [
            [
                Completion(token_ids=torch.tensor([i] * (i + 1)), logprobs=torch.full((i + 1,), -0.5), truncated=i == 2)
                for i in range(count)
            ]
            for count in num_samples
        ]

    def close(self):
        self.closed += 1


class Data(LightningDataModule):
    """Two questions a batch, the second with a rephrasing."""

    tokenizer = SimpleNamespace(batch_decode=lambda ids, skip_special_tokens: [f"says {int(x[0])}" for x in ids])

    def batches(self, split):
        ids = torch.tensor([7, 8])
        groups = [QuestionGroup("a", "q", (), ("0",)), QuestionGroup("b", "q", ("r",), ("1", "2"))]
        prompts = [Prompt(q, v, "plain", "q", ids, ids, g) for q, v, g in ((0, 0, 3), (1, 0, 2), (1, 1, 3))]
        return DataLoader(
            [QuestionBatch(groups=groups, prompts=prompts, split=split) for _ in range(2)], batch_size=None
        )

    def train_dataloader(self):
        return self.batches("train")

    def val_dataloader(self):
        return self.batches("val")


class Module(LightningModule):
    """Steps on every `every`-th batch, and keeps what was attached."""

    automatic_optimization = False

    def __init__(self, every=1):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.every = every
        self.seen, self.validated = [], []

    def training_step(self, batch, batch_idx):
        self.seen.append(batch.rollouts)
        if batch_idx % self.every == 0:
            self.weight.grad = -torch.ones(1)
            self.optimizers().step()
        return {"loss": torch.zeros(())}

    def validation_step(self, batch, batch_idx):
        self.validated.append(batch.rollouts)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


def judge(response, references):
    answer = response.removeprefix("says ")
    return Score(answer in references, answer)


def make_callback(engine, **options):
    return RolloutCallback(lambda: engine, judge, SamplingConfig(max_new_tokens=4), **options)


def fit(tmp_path, callback, module, **options):
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, default_root_dir=tmp_path, callbacks=[callback], log_every_n_steps=1,
        logger=CSVLogger(tmp_path, name="", version=""), enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, **options,
    )  # fmt: skip
    trainer.fit(module, Data())
    return trainer


def test_responses_are_scored_and_attached_in_the_order_of_the_prompts(tmp_path):
    module = Module()
    fit(tmp_path, make_callback(Engine()), module, limit_val_batches=0)
    rollouts = module.seen[0]
    assert rollouts.prompt.tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
    assert rollouts.question.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    assert rollouts.variant.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert list(rollouts.answers) == ["0", "1", "2", "0", "1", "0", "1", "2"]
    assert rollouts.correct.tolist() == [True, False, False, False, True, False, True, True]
    assert rollouts.rewards.tolist() == rollouts.correct.float().tolist()
    assert rollouts.lengths.tolist() == [1, 2, 3, 1, 2, 1, 2, 3]
    assert rollouts.truncated.tolist() == [False, False, True, False, False, False, False, True]
    assert set(rollouts.seconds) == {"sync", "generate", "score"}


def test_weights_are_streamed_only_after_the_policy_has_changed(tmp_path):
    engine, module = Engine(), Module(every=2)
    fit(tmp_path, make_callback(engine), module, max_steps=-1)
    # Batch 0 begins with weight 0, batch 1 with the stepped one; the validation after it changes nothing.
    assert [float(synced["weight"]) for synced in engine.synced] == [0.0, 1.0]
    assert len(engine.seeds) == 4
    assert len(module.validated) == 2
    assert engine.closed == 0, "fit and test share the engine"


def test_every_batch_has_a_seed_of_its_own_that_follows_from_the_run(tmp_path):
    def seeds(path, **options):
        engine = Engine()
        fit(path, make_callback(engine, **options), Module())
        return engine.seeds

    first = seeds(tmp_path / "a")
    assert len(set(first)) == len(first) == 4
    assert seeds(tmp_path / "b") == first
    assert set(seeds(tmp_path / "c", seed=1)).isdisjoint(first)


def test_a_resumed_callback_goes_on_counting(tmp_path):
    engine, whole = Engine(), Engine()
    callback = make_callback(engine)
    fit(tmp_path / "a", callback, Module(), limit_val_batches=0, limit_train_batches=1)
    resumed = make_callback(engine)
    resumed.load_state_dict(callback.state_dict())
    fit(tmp_path / "b", resumed, Module(), limit_val_batches=0, limit_train_batches=1)
    fit(tmp_path / "c", make_callback(whole), Module(), limit_val_batches=0)
    assert engine.seeds == whole.seeds
    ledger = json.loads((tmp_path / "b" / "ledger.json").read_text())
    assert (ledger["iterations"], ledger["rollouts"], ledger["prompts"], ledger["tokens"]) == (2, 16, 6, 30)


def test_what_is_logged_are_means_over_all_responses(tmp_path):
    fit(tmp_path, make_callback(Engine()), Module(), limit_val_batches=0)
    first, second = pd.read_csv(tmp_path / "metrics.csv").to_dict("records")
    assert first["rollout/correct"] == 0.5
    assert first["rollout/correct_original"] == pytest.approx(0.4)
    assert first["rollout/correct_neighbours"] == pytest.approx(2 / 3)
    assert first["rollout/length"] == 15 / 8
    assert first["rollout/truncated"] == 0.25
    assert first["rollout/entropy"] == pytest.approx(0.5)
    assert (first["budget/rollouts"], second["budget/rollouts"]) == (8, 16)
    assert first["rollout/rephrasings"] == 0.5, "of two questions one has one"


def test_reward_terms_are_added_and_kept_apart_from_the_verdict(tmp_path):
    module = Module()
    terms = {
        "long": lambda rollouts, groups: -0.1 * rollouts.lengths,
        "id": lambda rollouts, groups: torch.full((8,), 0.5),
    }
    fit(tmp_path, make_callback(Engine(), reward_terms=terms), module)
    rollouts = module.seen[0]
    assert rollouts.correct.tolist() == [True, False, False, False, True, False, True, True]
    torch.testing.assert_close(rollouts.rewards, rollouts.correct.float() + 0.5 - 0.1 * rollouts.lengths)
    logged = pd.read_csv(tmp_path / "metrics.csv").to_dict("records")[0]
    assert logged["rollout/reward_term/long"] == pytest.approx(-0.1 * 15 / 8)
    # Evaluation looks at the verdict alone.
    validated = module.validated[0]
    assert (validated.reward_terms, validated.rewards.tolist()) == ({}, validated.correct.float().tolist())


class DistinctData(Data):
    """Two batches of two questions each, no question twice; "0" is correct: one of three responses."""

    def batches(self, split):
        ids = torch.tensor([7, 8])
        prompts = [Prompt(q, 0, "plain", "q", ids, ids, 3) for q in range(2)]
        batches = []
        for names in ("ab", "cd"):
            groups = [QuestionGroup(name, "q", (), ("0",)) for name in names]
            batches.append(QuestionBatch(groups=groups, prompts=list(prompts), split=split))
        return DataLoader(batches, batch_size=None)


def test_a_replayed_success_joins_its_prompt_and_is_not_paid_for_again(tmp_path):
    class Scoring(Module):
        def response_entropy(self, prompts, responses):
            return torch.zeros(len(responses))

    module, asked = Scoring(), []

    class Asked(Engine):
        def generate(self, prompts, num_samples, sampling, seed):
            asked.append(list(num_samples))
            return super().generate(prompts, num_samples, sampling, seed)

    callback = make_callback(Asked(), replay=SuccessReplay(ratio=0.5, start=0.3))
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, default_root_dir=tmp_path, callbacks=[callback], log_every_n_steps=1,
        logger=CSVLogger(tmp_path, name="", version=""), enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, limit_val_batches=0,
    )  # fmt: skip
    trainer.fit(module, DistinctData())
    assert asked == [[3, 3], [3, 2]]
    rollouts = module.seen[1]
    assert rollouts.replayed.tolist() == [False] * 5 + [True]
    assert rollouts.prompt.tolist() == [0, 0, 0, 1, 1, 1]
    assert rollouts.token_ids[5].tolist() == [0]
    assert rollouts.correct.tolist() == [True, False, False, True, False, True]
    logged = pd.read_csv(tmp_path / "metrics.csv").to_dict("records")[1]
    # Two of the five new responses are correct; eleven responses were sampled in all.
    assert (logged["rollout/correct"], logged["budget/rollouts"]) == (pytest.approx(0.4), 11)
    assert (logged["replay/questions"], logged["replay/successes"]) == (3, 3)
    resumed = make_callback(Asked(), replay=SuccessReplay())
    resumed.load_state_dict(callback.state_dict())
    assert list(resumed.replay.records) == list(callback.replay.records)


def test_a_verifier_with_batches_is_asked_once_and_closed(tmp_path):
    class Verifier:
        calls, closed = 0, 0

        def judge_batch(self, responses, references):
            self.calls += 1
            return [judge(*pair) for pair in zip(responses, references, strict=True)]

        def close(self):
            self.closed += 1

    verifier, module = Verifier(), Module()
    callback = RolloutCallback(Engine, verifier, SamplingConfig(max_new_tokens=4))
    fit(tmp_path, callback, module, limit_val_batches=0)
    assert (verifier.calls, verifier.closed) == (2, 0)
    engine = callback._engine
    callback.close()
    assert (verifier.closed, engine.closed) == (1, 1)
    assert module.seen[0].correct.tolist() == [True, False, False, False, True, False, True, True]


def test_responses_without_a_verdict_are_counted_by_name_and_their_share_is_logged(tmp_path):
    def verifier(response, reference):
        return Score(False, None, "timeout") if response == "says 0" else judge(response, reference)

    callback = RolloutCallback(Engine, verifier, SamplingConfig(max_new_tokens=4))
    fit(tmp_path, callback, Module(), limit_val_batches=0)
    assert callback.failures == {"timeout": 6}, "the first response to each of the three prompts, in two batches"
    logged = pd.read_csv(tmp_path / "metrics.csv")["rollout/without_verdict"].dropna()
    assert logged.tolist() == pytest.approx([3 / 8, 3 / 8])


class Drawing(Data):
    """A loader whose questions are told apart by their id; those called `mixed` have a right and a wrong response."""

    def __init__(self, first, *later):
        super().__init__()
        self.first, self.later = first, list(later)
        self.observed = []

    def observe(self, batch):
        self.observed += [group.id for group in batch.groups]
        assert len(batch.rollouts) == 2 * len(batch.groups)

    def batch(self, names):
        ids = torch.tensor([7, 8])
        groups = [QuestionGroup(name, "q", (), ("0",) if "mixed" in name else ("9",)) for name in names]
        return QuestionBatch(
            groups=groups, prompts=[Prompt(i, 0, "plain", "q", ids, ids, 2) for i in range(len(names))]
        )

    def train_dataloader(self):
        class Loader(DataLoader):
            draw = lambda _: self.batch(self.later.pop(0))  # noqa: E731

        return Loader([self.batch(self.first)], batch_size=None)


@pytest.mark.parametrize(
    ("first", "later", "expected", "discarded"),
    [
        (["mixed 1", "mixed 2"], [["never"]], ["mixed 1", "mixed 2"], 0),
        (["flat", "mixed 1"], [["mixed 2", "mixed 3"]], ["mixed 1", "mixed 2"], 2),
        (["flat", "flat 2"], [["flat 3", "mixed 1"], ["mixed 2", "flat 4"]], ["mixed 1", "mixed 2"], 4),
        (["flat", "flat 2"], [["flat 3", "mixed 1"], ["flat 4", "flat 5"]], ["flat", "mixed 1"], 4),
    ],
)
def test_questions_without_gradient_are_replaced_until_the_draws_are_used_up(
    tmp_path, first, later, expected, discarded
):
    class Names(Module):
        def training_step(self, batch, batch_idx):
            self.names = [group.id for group in batch.groups]
            self.questions = batch.rollouts.question.tolist()
            return super().training_step(batch, batch_idx)

    module, data = Names(), Drawing(first, *later)
    callback = make_callback(Engine(), dynamic_sampling=DynamicSampling("prompt", max_draws=2))
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, default_root_dir=tmp_path, callbacks=[callback], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
    )  # fmt: skip
    trainer.fit(module, data)
    assert module.names == expected
    assert module.questions == [0, 0, 1, 1]
    drawn = 2 + discarded
    assert callback.ledger["discarded_questions"] == discarded
    assert callback.ledger["rollouts"] == 2 * drawn, "what is thrown away is paid for"
    assert data.observed == [*first, *sum(later, [])][:drawn], "and tells how hard its question is"
