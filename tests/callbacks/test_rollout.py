"""The pipeline inside a real trainer: what is asked of it when, logged, waited for and carried over a restart."""

from __future__ import annotations

import json
import threading
from functools import partial
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from transformers import AutoModelForCausalLM

from tagrpo import types
from tagrpo.callbacks import RolloutCallback, ThroughputMonitor
from tagrpo.callbacks.rollout import weights_of
from tagrpo.contrib.exgrpo.replay import SuccessReplay
from tagrpo.datamodules.loader import QuestionLoader
from tagrpo.datamodules.memory import QuestionMemory
from tagrpo.rollouts import EngineError, RolloutPipeline, SamplingConfig, VLLMEngine
from tagrpo.rollouts.dynamic_sampling import DynamicSampling
from tagrpo.rollouts.engines.transformers import TransformersEngine
from tagrpo.types import Prompt, QuestionBatch, QuestionGroup, Score
from tests.helpers import WaitingEngine

UPDATES = 3
"""Optimizer steps per training batch."""


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

    @property
    def iterations_per_epoch(self):
        return len(self.loader)

    def train_dataloader(self):
        return self.loader

    def val_dataloader(self):
        groups = [QuestionGroup("50", "q", (), ("0",))]
        return QuestionLoader(groups, partial(self.batch, split="val"), 1, shuffle=False, drop_last=False)

    def test_dataloader(self):
        return self.val_dataloader()


class Choosing(Data):
    """Wants to know what was sampled."""

    needs_memory = True

    def __init__(self, questions=6):
        super().__init__(questions)
        self.memory = self.visits = None

    def observe(self, visits):
        self.visits = [*(self.visits or []), visits]


class Module(LightningModule):
    """Counts its optimizer steps in its weight; any module will do."""

    automatic_optimization = False

    def __init__(self, updated=None, every=1):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.updated, self.every, self.batches, self.evaluated = updated, every, [], []

    def training_step(self, batch, batch_idx):
        self.batches.append(batch)
        for _ in range(UPDATES if batch_idx % self.every == 0 else 0):
            self.weight.grad = -torch.ones(())
            self.optimizers().step()
        if self.updated is not None:
            self.updated.set()
        return {"loss": torch.zeros(())}

    def validation_step(self, batch, batch_idx):
        self.evaluated.append(batch)

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


class Policy(Module):
    """Says of itself what `PolicyModule` does."""

    mini_batches = UPDATES
    needs_history = False

    def full_parameters(self):
        return iter([("model.weight", self.weight.detach())])

    def response_entropy(self, prompts, responses):
        return torch.zeros(len(responses))


class Even(types.Verifier):
    def __call__(self, response, reference):
        return Score(int(response) % 2 == 0, response)


def made_by(engine, verifier, **options):
    return partial(RolloutPipeline, engine, verifier, sampling=SamplingConfig(max_new_tokens=4), **options)


def make_callback(engine, **options):
    return RolloutCallback(made_by(lambda: engine, Even(), **options))


def make_trainer(folder, callback, **options):
    options = {"max_epochs": 1, "limit_val_batches": 0, **options}
    return Trainer(
        accelerator="cpu", default_root_dir=folder, callbacks=[ThroughputMonitor(), callback], log_every_n_steps=1,
        logger=CSVLogger(folder, name="", version=""), enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, **options,
    )  # fmt: skip


def fit(folder, callback, module, data=None, **options):
    make_trainer(folder, callback, **options).fit(module, data or Data())


def sampled_by(batch):
    """Optimizer steps of the weights that sampled a batch."""
    (steps,) = {int(ids[0]) for ids in batch.rollouts.token_ids}
    return steps


def asked(batches):
    return [[int(p.token_ids[0]) for p in batch.prompts] for batch in batches]


# ------------------------------------------------------------------ one batch after the other


def test_each_batch_of_every_stage_carries_rollouts_of_the_weights_of_its_time(tmp_path):
    engine, module = WaitingEngine(), Policy()
    trainer = make_trainer(tmp_path, make_callback(engine), limit_val_batches=1.0, val_check_interval=1)
    trainer.fit(module, Data())
    trainer.test(module, Data(), verbose=False)
    assert [sampled_by(batch) for batch in module.batches] == [0, 3, 6]
    assert [sampled_by(batch) for batch in module.evaluated] == [3, 6, 9, 9]
    assert [batch.rollouts.staleness.tolist() for batch in module.batches] == [[0] * 4] * 3
    train, validate, test = engine.seeds[:5:2], engine.seeds[1:6:2], engine.seeds[6:]
    assert len({*train, *validate, *test}) == 3 + 1 + 1, "validation draws with the same seed each time"
    # Streamed once for each of 0, 3, 6, 9 steps, and when the test begins, which may have loaded a checkpoint.
    assert engine.names == ["model.weight"] * 5


def test_a_foreign_module_samples_with_its_parameters_when_they_have_changed(tmp_path):
    engine, module = WaitingEngine(), Module(every=2)
    fit(tmp_path, make_callback(engine), module)
    assert [sampled_by(batch) for batch in module.batches] == [0, 3, 3]
    assert engine.names == ["weight"] * 2


def test_what_is_logged_is_of_each_batch_and_the_budget_is_written_at_the_end(tmp_path):
    fit(tmp_path, make_callback(WaitingEngine()), Policy())
    logged = pd.read_csv(tmp_path / "metrics.csv")
    assert logged["rollout/correct"].dropna().tolist() == [1.0, 0.0, 1.0], "weights of 0, 3 and 6 steps"
    assert logged["budget/rollouts"].dropna().tolist() == [4, 8, 12]
    assert logged["budget/updates"].dropna().tolist() == [0, 3, 6]
    assert "rollout/staleness" not in logged
    assert json.loads((tmp_path / "ledger.json").read_text()) == {
        "prompts": 6, "rollouts": 12, "tokens": 24, "discarded_questions": 0, "updates": 9, "iterations": 3,
    }  # fmt: skip


def test_a_resumed_callback_goes_on_counting(tmp_path):
    engine, whole = WaitingEngine(), WaitingEngine()
    callback = make_callback(engine)
    fit(tmp_path / "a", callback, Policy(), limit_train_batches=1)
    resumed = make_callback(engine)
    resumed.load_state_dict(callback.state_dict())
    fit(tmp_path / "b", resumed, Policy(), limit_train_batches=2)
    fit(tmp_path / "c", make_callback(whole), Policy())
    assert engine.seeds == whole.seeds
    ledger = json.loads((tmp_path / "b" / "ledger.json").read_text())
    assert (ledger["iterations"], ledger["rollouts"]) == (3, 12)


def test_draws_come_from_the_loader_and_the_data_module_sees_everything_that_was_sampled(tmp_path):
    # Within a batch all responses are alike: every draw is used up.
    engine, module, data = WaitingEngine(), Policy(), Choosing(8)
    callback = make_callback(engine, dynamic_sampling=DynamicSampling("prompt", max_draws=1))
    fit(tmp_path, callback, module, data, max_epochs=-1, max_steps=2 * UPDATES)
    assert data.memory is callback.pipeline.memory
    assert [int(id) for id in data.memory.records] == sum([call[2] for call in engine.calls], [])
    assert sorted(data.memory.records) == [str(i) for i in range(8)]
    assert [[sum(visit.samples) for visit in visits] for visits in data.visits] == [[2, 2]] * 4


@pytest.mark.parametrize("epochs", [1, 2])
def test_draws_do_not_shorten_a_run_of_epochs_nor_one_that_is_resumed(tmp_path, epochs):
    def run(folder, resume=None, **options):
        # Each batch of two draws four more: the eight questions of an epoch last for 4/3 iterations.
        callback = make_callback(WaitingEngine(), dynamic_sampling=DynamicSampling("prompt", max_draws=2))
        trainer = make_trainer(folder, callback, max_epochs=epochs, **options)
        trainer.fit(module := Policy(), Data(8), ckpt_path=resume, weights_only=False if resume else None)
        trainer.save_checkpoint(folder / "last.ckpt")
        return len(module.batches), trainer.global_step

    iterations = epochs * 4
    assert run(tmp_path / "whole") == (iterations, iterations * UPDATES)
    assert run(tmp_path / "half", max_steps=3 * UPDATES) == (3, 3 * UPDATES), "max_steps ends it before"
    assert run(tmp_path / "rest", tmp_path / "half" / "last.ckpt") == (iterations - 3, iterations * UPDATES)


def test_nothing_is_remembered_where_nobody_reads_it(tmp_path):
    class LookingBack(Policy):
        needs_history = True

    idle, data = make_callback(WaitingEngine()), Choosing()
    data.needs_memory = False
    fit(tmp_path / "a", idle, module := Policy(), data)
    assert idle.pipeline.memory is None
    assert (data.memory, data.visits) == (None, None)
    assert [batch.rollouts.history for batch in module.batches] == [None] * 3
    needed = make_callback(WaitingEngine())
    fit(tmp_path / "b", needed, module := LookingBack(), data)
    assert data.memory is needed.pipeline.memory
    assert [batch.rollouts.history.samples.tolist() for batch in module.batches] == [[0] * 4] * 3
    assert [sum(visit.samples) for visit in sum(data.visits, [])] == [2] * 6


def test_a_curriculum_that_looks_back_is_refused_with_several_batches_ahead(tmp_path):
    fit(tmp_path / "a", make_callback(WaitingEngine(), ahead=1), Policy(), Choosing())
    with pytest.raises(ValueError, match=r"rollout.ahead.*data.curriculum.*2"):
        fit(tmp_path / "b", make_callback(WaitingEngine(), ahead=2), Policy(), Choosing())


def test_replay_asks_the_module_for_entropies_and_refuses_one_that_has_none(tmp_path):
    replay = SuccessReplay(ratio=0.5, start=0.0)
    with pytest.raises(
        TypeError,
        match=r"rollout\.replay.*SampledPolicy.*full_parameters, mini_batches, needs_history, response_entropy",
    ):
        fit(tmp_path / "a", make_callback(WaitingEngine(), replay=replay), Module())

    class Mixed(types.Verifier):
        asked = 0

        def __call__(self, response, reference):
            self.asked += 1
            return Score(self.asked % 2 == 0, response)

    module = Policy()
    callback = RolloutCallback(made_by(WaitingEngine, Mixed(), replay=replay))
    fit(tmp_path / "b", callback, module)
    assert [int(batch.rollouts.replayed.sum()) for batch in module.batches] == [0, 1, 1]
    logged = pd.read_csv(tmp_path / "b" / "metrics.csv")
    assert logged["replay/questions"].dropna().tolist() == [2, 3, 4]


def test_retired_questions_are_not_served_again_also_not_after_a_resume(tmp_path):
    class ThreeIsHard(types.Verifier):
        def score_batch(self, responses, references):
            return [
                Score(reference != ("3",), response)
                for response, reference in zip(responses, references, strict=True)
            ]

    def run(folder, epochs, resume=None):
        engine, data = WaitingEngine(), Data(7)
        data.loader.groups = [group._replace(answer=(group.id,)) for group in data.loader.groups]
        replay = SuccessReplay(start=1.0)
        callback = RolloutCallback(made_by(lambda: engine, ThreeIsHard(), replay=replay))
        options = {
            "max_epochs": epochs,
            "limit_val_batches": 0,
            "enable_checkpointing": False,
            "logger": False,
        }
        trainer = Trainer(accelerator="cpu", default_root_dir=folder, callbacks=[callback], barebones=False,
                          enable_progress_bar=False, enable_model_summary=False, **options)  # fmt: skip
        trainer.fit(Policy(), data, ckpt_path=resume, weights_only=False if resume else None)
        trainer.save_checkpoint(folder / "last.ckpt")
        return [sorted(asked) for _, _, asked in engine.calls], replay

    first, replay = run(tmp_path, 1)
    retired = {id for id, record in replay.memory.records.items() if record.solved_in_full}
    assert retired == {str(i) for asked in first for i in asked} - {"3"}
    second, replay = run(tmp_path, 2, tmp_path / "last.ckpt")
    served = {i for asked in first for i in asked if i != 3}
    assert second[0] == sorted(set(range(7)) - served), "what is left makes one batch"
    assert not {i for asked in second for i in asked} & served


def test_the_engine_is_shared_by_all_stages_and_closed_at_last(tmp_path):
    closed = []

    class Closing(WaitingEngine):
        def close(self):
            closed.append(self)

    engine = Closing()
    callback = make_callback(engine)
    fit(tmp_path, callback, Policy())
    assert closed == []
    callback.pipeline.close()
    assert closed == [engine]


# ------------------------------------------------------------------ one batch ahead


def test_each_batch_is_sampled_beside_the_update_by_the_weights_from_before_it(tmp_path):
    updated = threading.Event()
    engine, module = WaitingEngine(updated), Policy(updated)
    fit(tmp_path, make_callback(engine, ahead=True), module, max_epochs=2)
    assert [sampled_by(batch) for batch in module.batches] == [0, 0, 3, 6, 9, 12]
    assert [batch.rollouts.staleness.unique().tolist() for batch in module.batches] == [[0], *[[3]] * 5]
    # As many requests as batches: none is sampled in vain. The order of questions is that of a plain run.
    assert [call[0] for call in engine.calls] == ["generate", *["generate_async"] * 5]
    assert [call[2] for call in engine.calls] == asked(module.batches)
    plain = [batch for _ in range(2) for batch in Data().loader]
    assert asked(module.batches)[:3] == asked(plain)[:3]
    assert sorted(sum(asked(module.batches)[3:], [])) == list(range(6))
    logged = pd.read_csv(tmp_path / "metrics.csv")
    assert logged["rollout/staleness"].dropna().tolist() == [0, 3, 3, 3, 3, 3]
    assert logged["budget/rollouts"].dropna().tolist() == [4, 8, 12, 16, 20, 24], (
        "counted when it is learned from"
    )
    assert logged["seconds/wait"].notna().sum() == 5, (
        "what is waited for is a phase of the iteration that waits"
    )


def test_two_batches_at_a_time_are_sampled_in_one_request_with_weights_sent_every_other_iteration(tmp_path):
    updated = threading.Event()
    engine, module = WaitingEngine(updated), Policy(updated)
    fit(tmp_path, make_callback(engine, ahead=2), module, max_epochs=2)
    assert [sampled_by(batch) for batch in module.batches] == [0, 0, 0, 3, 3, 9]
    assert [batch.rollouts.staleness.unique().tolist() for batch in module.batches] == [
        [0],
        [3],
        [6],
        [6],
        [9],
        [6],
    ]
    first, *others = asked(module.batches)
    pairs = [others[0] + others[1], others[2] + others[3], others[4]]
    assert [call[2] for call in engine.calls] == [first, *pairs], "the last one has no other beside it"
    assert [call[0] for call in engine.calls] == ["generate", *["generate_async"] * 3]
    assert [call[1] for call in engine.calls] == [0, 0, 3, 9]
    assert len(engine.names) == 3, "of the weights 0, 3 and 9"
    assert others[:2] == asked(list(Data().loader))[1:]


def test_the_same_prompts_and_seeds_are_asked_for_as_without(tmp_path):
    ahead, plain = WaitingEngine(), WaitingEngine()
    fit(tmp_path / "a", make_callback(ahead, ahead=True), Policy(), max_epochs=2)
    fit(tmp_path / "b", make_callback(plain), Policy(), max_epochs=2)
    assert ahead.seeds == plain.seeds
    assert [call[2] for call in ahead.calls] == [call[2] for call in plain.calls]


@pytest.mark.parametrize(
    ("options", "begun"),
    [
        ({"max_epochs": -1, "max_steps": 2 * UPDATES}, 1),
        ({"max_epochs": -1, "max_steps": 2 * UPDATES + 1}, 2),
    ],
)
@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_nothing_is_sampled_after_the_last_optimizer_step(tmp_path, options, begun, ahead):
    engine, module = WaitingEngine(), Policy()
    fit(tmp_path, make_callback(engine, ahead=ahead), module, **options)
    sampled = [
        question for kind, _, questions in engine.calls if kind == "generate_async" for question in questions
    ]
    assert sampled == sum(asked(module.batches)[1:], [])
    assert len(module.batches) == 1 + begun


def test_validation_waits_and_gets_the_weights_of_its_time(tmp_path):
    engine, module = WaitingEngine(), Policy()
    fit(tmp_path, make_callback(engine, ahead=True), module, limit_val_batches=1.0, val_check_interval=1)
    assert [sampled_by(batch) for batch in module.evaluated] == [3, 6, 9]
    assert [sampled_by(batch) for batch in module.batches] == [0, 0, 3]
    assert engine.calls[2] == ("generate", 3, [50])


def test_draws_of_dynamic_sampling_come_from_the_weights_that_learn_from_them(tmp_path):
    engine, module = WaitingEngine(), Policy()
    callback = make_callback(engine, ahead=True, dynamic_sampling=DynamicSampling("prompt", max_draws=1))
    fit(tmp_path, callback, module, Data(8), max_epochs=-1, max_steps=2 * UPDATES)
    names = [call[0] for call in engine.calls]
    assert names == ["generate", "generate", "generate_async", "generate"]
    assert [call[1] for call in engine.calls] == [0, 0, 0, 3]
    assert sorted(sum((call[2] for call in engine.calls), [])) == list(range(8)), (
        "no question twice, none left out"
    )
    assert set(module.batches[1].rollouts.seconds) >= {"generate", "sync", "score"}


@pytest.mark.parametrize("limit_val_batches", [0, 1.0])
def test_a_failure_is_raised_when_the_batch_is_needed_and_not_before(tmp_path, limit_val_batches):
    engine, module = WaitingEngine(fail_at=[2]), Policy()
    options = {"limit_val_batches": limit_val_batches, "val_check_interval": 1}
    with pytest.raises(EngineError, match="gone"):
        fit(tmp_path, make_callback(engine, ahead=True), module, **options)
    assert [sampled_by(batch) for batch in module.batches] == [0, 0]
    assert len(module.evaluated) == (2 if limit_val_batches else 0), (
        "the second update's validation comes before"
    )


def test_a_state_holds_the_responses_and_the_resumed_run_learns_from_them(tmp_path):
    class Stop(Exception):
        pass

    class Interrupted(Policy):
        def training_step(self, batch, batch_idx):
            if batch_idx == 1:
                raise Stop
            return super().training_step(batch, batch_idx)

    states = []

    class Saving(RolloutCallback):
        def on_train_batch_end(self, trainer, *arguments):
            super().on_train_batch_end(trainer, *arguments)
            states.append((self.state_dict(), trainer.train_dataloader.state_dict()))

    callback = Saving(made_by(WaitingEngine, Even(), ahead=True))
    with pytest.raises(Stop):
        fit(tmp_path / "a", callback, Interrupted())
    torch.save(states[0], tmp_path / "state")
    state, place = torch.load(tmp_path / "state", weights_only=True)
    whole, resumed = Policy(), Policy()
    fit(tmp_path / "b", make_callback(WaitingEngine(), ahead=True), whole)
    engine, data = WaitingEngine(), Data()
    data.loader.load_state_dict(place)

    class Loading(RolloutCallback):
        def setup(self, *arguments, **options):
            super().setup(*arguments, **options)
            self.load_state_dict(state)

    with torch.no_grad():
        resumed.weight += 3
    fit(tmp_path / "c", Loading(made_by(lambda: engine, Even(), ahead=True)), resumed, data)
    assert asked(resumed.batches) == asked(whole.batches)[1:]
    # Sampled before the update that the state holds, and not again.
    assert sampled_by(resumed.batches[0]) == 0
    assert engine.calls[0][0] == "generate_async"


def test_an_engine_that_can_not_is_refused_when_the_run_is_built():
    with pytest.raises(ValueError, match=r"VLLMEngine.*rollout=vllm_server"):
        RolloutCallback(made_by(partial(VLLMEngine, model_path="x"), Even(), ahead=True))
    RolloutCallback(made_by(partial(VLLMEngine, model_path="x"), Even()))


class Wrapper(LightningModule):
    """A module of another project that holds its policy under a name of its own."""

    def __init__(self, path, with_critic=False):
        super().__init__()
        self.actor = AutoModelForCausalLM.from_pretrained(path)
        self.reference = AutoModelForCausalLM.from_pretrained(path).requires_grad_(False)
        if with_critic:
            self.critic = AutoModelForCausalLM.from_pretrained(path)


def test_the_engine_gets_a_wrapped_policy_under_its_own_names(tiny_policy):
    module = Wrapper(tiny_policy)
    engine = TransformersEngine(str(tiny_policy))
    module.actor.model.norm.weight.data.fill_(3.0)
    engine.sync(weights_of(module))  # it refuses unknown names and missing ones
    assert engine.model.model.norm.weight.tolist() == [3.0] * 32
    assert [name for name, _ in weights_of(module)] == [name for name, _ in module.actor.named_parameters()]
    with pytest.raises(ValueError, match=r"RolloutCallback\(…, policy='actor'\)"):
        engine.sync(
            (f"actor.{name}", parameter.detach()) for name, parameter in module.actor.named_parameters()
        )


def test_of_several_trained_models_one_must_be_named(tiny_policy):
    module = Wrapper(tiny_policy, with_critic=True)
    with pytest.raises(ValueError, match=r"policy='actor'"):
        weights_of(module)
    assert next(iter(weights_of(module, policy="critic")))[1] is not None
    with pytest.raises(AttributeError, match="model"):
        weights_of(module, policy="model")


def test_a_module_without_a_known_model_is_taken_whole():
    assert [name for name, _ in weights_of(torch.nn.Linear(2, 3))] == ["weight", "bias"]


def test_what_another_part_remembers_retires_no_question_of_a_replay_without_a_memory():
    class Replay:
        memory = None

    class Loader:
        def serve_by(self, chance):
            raise AssertionError("all questions are served")

    callback = RolloutCallback(made_by(WaitingEngine, Even()))
    callback.pipeline.replay, callback.pipeline.memory = Replay(), QuestionMemory()
    callback.on_train_start(SimpleNamespace(train_dataloader=Loader()), Policy())
