"""One batch ahead: who samples what with which weights, when it is waited for, and what is refused."""

from __future__ import annotations

import threading
from functools import partial
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger

from tagrpo.callbacks import RolloutCallback, ThroughputMonitor
from tagrpo.datamodules.loader import QuestionLoader
from tagrpo.rollouts import (
    ContinuousBatchingEngine,
    EngineError,
    SamplingConfig,
    TransformersEngine,
    VLLMEngine,
    VLLMServerEngine,
)
from tagrpo.rollouts.ahead import Generation
from tagrpo.rollouts.dynamic_sampling import DynamicSampling
from tagrpo.rollouts.engines.base import in_thread
from tagrpo.rollouts.replay import SuccessReplay
from tagrpo.types import Completion, Prompt, QuestionBatch, QuestionGroup, Score

UPDATES = 3
"""Optimizer steps per training batch."""


class Engine:
    """Responds with the number of optimizer steps that its weights have made, and refuses two things at once."""

    def __init__(self, updated=None, fail_at=()):
        self.updated, self.fail_at = updated, fail_at
        self.steps, self.busy, self.calls = 0, False, []

    def sync(self, parameters):
        assert not self.busy
        self.steps = int(dict(parameters)["weight"])

    def generate(self, prompts, num_samples, sampling, seed):
        assert not self.busy
        self.calls.append(("generate", self.steps, [int(p[0]) for p in prompts]))
        return self.responses(num_samples)

    def responses(self, num_samples):
        ids = torch.tensor([self.steps, 2])
        return [
            [Completion(token_ids=ids, logprobs=torch.full((2,), -0.5), truncated=False)] * count
            for count in num_samples
        ]

    def begin(self, prompts, num_samples, sampling, seed):
        assert not self.busy
        self.calls.append(("begin", self.steps, [int(p[0]) for p in prompts]))
        self.busy, number = True, sum(call[0] == "begin" for call in self.calls)

        def sample():
            assert self.updated is None or self.updated.wait(20), "the update waits for sampling"
            if number in self.fail_at:
                raise EngineError("gone")
            return self.responses(num_samples)

        wait = in_thread(sample)

        def finish():
            self.busy = False
            return wait()

        return finish

    def close(self):
        pass


class Data(LightningDataModule):
    """Two questions a batch; the only token of question i's prompt is i."""

    tokenizer = SimpleNamespace(batch_decode=lambda ids, skip_special_tokens: [str(int(x[0])) for x in ids])

    def __init__(self, questions=6):
        super().__init__()
        groups = [QuestionGroup(str(i), "q", (), ("0",)) for i in range(questions)]
        self.loader = QuestionLoader(groups, self.batch, 2, shuffle=True, drop_last=True)

    def batch(self, groups, epoch, split="train"):
        ids = [torch.tensor([int(group.id)]) for group in groups]
        prompts = [Prompt(row, 0, "plain", "q", i, i, 2) for row, i in enumerate(ids)]
        return QuestionBatch(groups=list(groups), prompts=prompts, split=split)

    def train_dataloader(self):
        return self.loader

    def val_dataloader(self):
        groups = [QuestionGroup("50", "q", (), ("0",))]
        return QuestionLoader(groups, partial(self.batch, split="val"), 1, shuffle=False, drop_last=False)


class Module(LightningModule):
    """Counts its optimizer steps in its weight."""

    automatic_optimization = False
    mini_batches = UPDATES

    def __init__(self, updated=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.updated, self.batches, self.validated = updated, [], []

    def training_step(self, batch, batch_idx):
        self.batches.append(batch)
        for _ in range(UPDATES):
            self.weight.grad = -torch.ones(())
            self.optimizers().step()
        if self.updated is not None:
            self.updated.set()
        return {"loss": torch.zeros(())}

    def validation_step(self, batch, batch_idx):
        self.validated.append(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


def judge(response, references):
    return Score(int(response) % 2 == 0, response)


def make_callback(engine, **options):
    return RolloutCallback(lambda: engine, judge, SamplingConfig(max_new_tokens=4), ahead=True, **options)


def fit(folder, callback, module, data=None, **options):
    options = {"max_epochs": 1, "limit_val_batches": 0, **options}
    trainer = Trainer(
        accelerator="cpu", default_root_dir=folder, callbacks=[ThroughputMonitor(), callback], log_every_n_steps=1,
        logger=CSVLogger(folder, name="", version=""), enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, **options,
    )  # fmt: skip
    trainer.fit(module, data or Data())


def sampled_by(batch):
    """Optimizer steps of the weights that sampled a batch."""
    (steps,) = {int(ids[0]) for ids in batch.rollouts.token_ids}
    return steps


def asked(batches):
    return [[int(p.token_ids[0]) for p in batch.prompts] for batch in batches]


def test_each_batch_is_sampled_beside_the_update_by_the_weights_from_before_it(tmp_path):
    updated = threading.Event()
    engine, module = Engine(updated), Module(updated)
    fit(tmp_path, make_callback(engine), module, max_epochs=2)
    assert [sampled_by(batch) for batch in module.batches] == [0, 0, 3, 6, 9, 12]
    assert [batch.rollouts.staleness.unique().tolist() for batch in module.batches] == [[0], *[[3]] * 5]
    # As many requests as batches: none is sampled in vain. The order of questions is that of a plain run.
    assert [call[0] for call in engine.calls] == ["generate", *["begin"] * 5]
    assert [call[2] for call in engine.calls] == asked(module.batches)
    plain = [batch for _ in range(2) for batch in Data().loader]
    assert asked(module.batches)[:3] == asked(plain)[:3]
    assert sorted(sum(asked(module.batches)[3:], [])) == list(range(6))
    logged = pd.read_csv(tmp_path / "metrics.csv")
    assert logged["rollout/staleness"].dropna().tolist() == [0, 3, 3, 3, 3, 3]
    assert logged["budget/rollouts"].dropna().tolist() == [4, 8, 12, 16, 20, 24], "counted when it is learned from"
    assert logged["seconds/wait"].notna().sum() == 5, "what is waited for is a phase of the iteration that waits"


def test_the_same_prompts_and_seeds_are_asked_for_as_without(tmp_path):
    def seeds(path, **options):
        found = []

        class Seeds(Engine):
            def generate(self, prompts, num_samples, sampling, seed):
                found.append((seed, [int(p[0]) for p in prompts]))
                return super().generate(prompts, num_samples, sampling, seed)

            def begin(self, prompts, num_samples, sampling, seed):
                found.append((seed, [int(p[0]) for p in prompts]))
                return super().begin(prompts, num_samples, sampling, seed)

        callback = RolloutCallback(Seeds, judge, SamplingConfig(max_new_tokens=4), **options)
        fit(path, callback, Module(), max_epochs=2)
        return found

    assert seeds(tmp_path / "a", ahead=True) == seeds(tmp_path / "b")


@pytest.mark.parametrize(
    ("options", "begun"),
    [({"max_epochs": -1, "max_steps": 2 * UPDATES}, 1), ({"max_epochs": -1, "max_steps": 2 * UPDATES + 1}, 2)],
)
def test_nothing_is_sampled_after_the_last_optimizer_step(tmp_path, options, begun):
    engine = Engine()
    fit(tmp_path, make_callback(engine), Module(), **options)
    assert sum(call[0] == "begin" for call in engine.calls) == begun


def test_validation_waits_and_gets_the_weights_of_its_time(tmp_path):
    engine, module = Engine(), Module()
    fit(tmp_path, make_callback(engine), module, limit_val_batches=1.0, val_check_interval=1)
    assert [sampled_by(batch) for batch in module.validated] == [3, 6, 9]
    assert [sampled_by(batch) for batch in module.batches] == [0, 0, 3]
    assert engine.calls[2] == ("generate", 3, [50])


def test_draws_of_dynamic_sampling_come_from_the_weights_that_learn_from_them(tmp_path):
    # Batches of weights 3 and 9 are uniformly wrong; nothing differs within a batch, so that every draw is used up.
    engine, module = Engine(), Module()
    callback = make_callback(engine, dynamic_sampling=DynamicSampling("prompt", max_draws=1))
    fit(tmp_path, callback, module, Data(8), max_epochs=-1, max_steps=2 * UPDATES)
    names = [call[0] for call in engine.calls]
    assert names == ["generate", "generate", "begin", "generate"]
    assert [call[1] for call in engine.calls] == [0, 0, 0, 3]
    assert sorted(sum((call[2] for call in engine.calls), [])) == list(range(8)), "no question twice, none left out"
    assert set(module.batches[1].rollouts.seconds) >= {"generate", "sync", "score"}


@pytest.mark.parametrize("limit_val_batches", [0, 1.0])
def test_a_failure_is_raised_when_the_batch_is_needed_and_not_before(tmp_path, limit_val_batches):
    engine, module = Engine(fail_at=[2]), Module()
    options = {"limit_val_batches": limit_val_batches, "val_check_interval": 1}
    with pytest.raises(EngineError, match="gone"):
        fit(tmp_path, make_callback(engine), module, **options)
    assert [sampled_by(batch) for batch in module.batches] == [0, 0]
    assert len(module.validated) == (2 if limit_val_batches else 0), "the second update's validation comes before"


def test_a_state_holds_the_responses_and_goes_on_with_them(tmp_path):
    class Stop(Exception):
        pass

    class Interrupted(Module):
        def training_step(self, batch, batch_idx):
            if batch_idx == 1:
                raise Stop
            return super().training_step(batch, batch_idx)

    states = []

    class Saving(RolloutCallback):
        def on_train_batch_end(self, trainer, *arguments):
            super().on_train_batch_end(trainer, *arguments)
            states.append((self.state_dict(), trainer.train_dataloader.state_dict()))

    callback = Saving(Engine, judge, SamplingConfig(max_new_tokens=4), ahead=True)
    with pytest.raises(Stop):
        fit(tmp_path / "a", callback, Interrupted())
    torch.save(states[0], tmp_path / "state")
    state, place = torch.load(tmp_path / "state", weights_only=True)
    whole, resumed = Module(), Module()
    fit(tmp_path / "b", make_callback(Engine()), whole)
    engine, data = Engine(), Data()
    data.loader.load_state_dict(place)

    class Loading(RolloutCallback):
        def setup(self, *arguments, **options):
            super().setup(*arguments, **options)
            self.load_state_dict(state)

    with torch.no_grad():
        resumed.weight += 3
    fit(tmp_path / "c", Loading(lambda: engine, judge, SamplingConfig(max_new_tokens=4), ahead=True), resumed, data)
    assert asked(resumed.batches) == asked(whole.batches)[1:]
    # Sampled before the update that the state holds, and not again.
    assert sampled_by(resumed.batches[0]) == 0
    assert engine.calls[0][0] == "begin"


def test_neither_failed_responses_nor_those_of_other_ranks_are_gone_on_with():
    def fail():
        raise EngineError("gone")

    there = Generation("asked", 3, finish=lambda: Engine().responses([2, 1])).state_dict()
    found = Generation.from_state(there)
    assert (found.asked, found.step) == ("asked", 3)
    assert [len(samples) for samples in found.result({})] == [2, 1]
    assert Generation.from_state({**there, "ranks": there["ranks"] * 2}) is None
    failed = Generation("asked", 3, finish=fail)
    assert Generation.from_state(failed.state_dict()) is None, "a checkpoint can be written all the same"
    with pytest.raises(EngineError, match="gone"):
        failed.result({})


def test_responses_to_other_prompts_than_those_that_came_are_not_used(tmp_path):
    class Reordered(Data):
        def train_dataloader(self):
            self.loader.peek = lambda: self.batch([QuestionGroup("40", "q", (), ("0",))], 0)
            return self.loader

    engine, module = Engine(), Module()
    with pytest.warns(UserWarning, match="Another batch came"):
        fit(tmp_path, make_callback(engine), module, Reordered())
    assert [sampled_by(batch) for batch in module.batches] == [0, 3, 6]


@pytest.mark.parametrize("engine", [VLLMEngine, ContinuousBatchingEngine])
def test_engines_that_share_the_trainers_device_or_random_state_are_refused(engine):
    with pytest.raises(ValueError, match=rf"{engine.__name__}.*rollout=vllm_server"):
        RolloutCallback(partial(engine, model_path="x"), judge, SamplingConfig(), ahead=True)
    RolloutCallback(partial(engine, model_path="x"), judge, SamplingConfig())


@pytest.mark.parametrize("engine", [TransformersEngine, VLLMServerEngine])
def test_replay_is_refused_whatever_the_engine(engine):
    with pytest.raises(ValueError, match=r"rollout\.replay=null"):
        RolloutCallback(partial(engine, model_path="x"), judge, SamplingConfig(), replay=SuccessReplay(), ahead=True)


def test_a_thread_samples_what_a_call_does(tiny_policy):
    from transformers import AutoModelForCausalLM

    engine = TransformersEngine(str(tiny_policy))
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    engine.sync(model.named_parameters())
    arguments = ([torch.tensor([5, 6, 7]), torch.tensor([8, 9])], [4, 3], SamplingConfig(max_new_tokens=8), 1)
    expected = engine.generate(*arguments)
    state = torch.get_rng_state()
    delivered = []
    finish = engine.begin(*arguments, lambda prompt, _: delivered.append(prompt))
    with torch.no_grad():
        for parameter in model.parameters():  # an update beside it, which must not reach the engine's copy
            parameter.add_(torch.ones_like(parameter))
    found = finish()
    assert torch.equal(torch.get_rng_state(), state)
    assert sorted(delivered) == [0, 1]
    for a, b in zip(sum(found, []), sum(expected, []), strict=True):
        assert torch.equal(a.token_ids, b.token_ids)
        assert torch.equal(a.logprobs, b.logprobs)
