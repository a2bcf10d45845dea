"""Sync, generate, score, `Rollouts`: with a scripted engine, and with a real one in a plain training loop."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tagrpo import distributed, types
from tagrpo.contrib.exgrpo.replay import SuccessReplay
from tagrpo.datamodules import memory as memory_module
from tagrpo.datamodules.memory import QuestionMemory
from tagrpo.rollouts import (
    EngineError,
    RolloutPipeline,
    SamplingConfig,
    TransformersEngine,
    VLLMEngine,
    dynamic_sampling,
)
from tagrpo.rollouts import pipeline as pipeline_module
from tagrpo.rollouts.dynamic_sampling import DynamicSampling, take_questions
from tagrpo.types import Completion, Prompt, QuestionBatch, QuestionGroup, Score
from tagrpo.types.checks import EndOfRun
from tests.helpers import on_two_ranks

IDS = torch.tensor([7, 8])
LONG = Completion(token_ids=torch.full((999,), 7), logprobs=torch.zeros(999), truncated=True)
"""A response beyond every length limit."""
TERMS = {"many": lambda rollouts, groups: rollouts.lengths.max() * torch.ones(len(rollouts))}
"""A reward term that needs a response."""


class Engine(types.Engine):
    """Answers every prompt with the number of the sample, and remembers what it was asked."""

    def __init__(self):
        self.synced, self.requests, self.slept, self.closed = [], [], 0, 0

    def sync(self, parameters):
        self.synced.append({name: tensor.clone() for name, tensor in parameters})

    def generate(self, request, deliver=types.ignore):
        self.requests.append(request)
        return [
            [
                Completion(
                    token_ids=torch.tensor([i] * (i + 1)),
                    logprobs=torch.full((i + 1,), -0.5),
                    truncated=i == 2,
                )
                for i in range(count)
            ]
            for count in request.num_samples
        ]

    def sleep(self):
        self.slept += 1

    def close(self):
        self.closed += 1


class Verifier(types.Verifier):
    """Finds `says 3` correct when 3 is a reference, and gives no verdict on what `fails` names."""

    def __init__(self, fails=()):
        self.fails, self.batches, self._closed = fails, 0, 0

    def __call__(self, response, reference):
        answer = response.removeprefix("says ")
        return Score(False, None, "timeout") if answer in self.fails else Score(answer in reference, answer)

    def score_batch(self, responses, references):
        self.batches += 1
        return super().score_batch(responses, references)

    def close(self):
        self._closed += 1


def decode(token_ids):
    return [f"says {int(ids[0])}" for ids in token_ids]


def make_pipeline(engine, verifier=None, **options):
    return RolloutPipeline(
        lambda: engine, verifier or Verifier(), decode, SamplingConfig(max_new_tokens=4), **options
    )


def make_batch(split="train"):
    """Two questions, the second with a rephrasing."""
    groups = [QuestionGroup("a", "q", (), ("0",)), QuestionGroup("b", "q", ("r",), ("1", "2"))]
    prompts = [Prompt(q, v, "plain", "q", IDS, IDS, g) for q, v, g in ((0, 0, 3), (1, 0, 2), (1, 1, 3))]
    return QuestionBatch(groups=groups, prompts=prompts, split=split)


def asking(*names):
    """One prompt for each question, of two responses: 0, which is correct where the name has `mixed` in it, and 1."""
    groups = [QuestionGroup(name, "q", (), ("0",) if "mixed" in name else ("9",)) for name in names]
    return QuestionBatch(
        groups=groups, prompts=[Prompt(i, 0, "plain", "q", IDS, IDS, 2) for i in range(len(names))]
    )


def make_policy():
    policy = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(policy.weight)
    return policy


def step_on(policy):
    with torch.no_grad():
        policy.weight += 1


def test_responses_are_scored_and_attached_in_the_order_of_the_prompts():
    batch = make_batch()
    rolled_out = make_pipeline(Engine()).roll_out(batch, make_policy(), 0)
    rollouts = rolled_out.rollouts
    assert (rolled_out.groups, rolled_out.prompts, batch.rollouts) == (batch.groups, batch.prompts, None)
    assert rollouts.prompt.tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
    assert rollouts.question.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    assert rollouts.rephrasing.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert list(rollouts.answers) == ["0", "1", "2", "0", "1", "0", "1", "2"]
    assert rollouts.correct.tolist() == [True, False, False, False, True, False, True, True]
    assert rollouts.rewards.tolist() == rollouts.correct.float().tolist()
    assert rollouts.lengths.tolist() == [1, 2, 3, 1, 2, 1, 2, 3]
    assert rollouts.truncated.tolist() == [False, False, True, False, False, False, False, True]
    assert (rollouts.replayed.tolist(), rollouts.staleness.tolist()) == ([False] * 8, [0] * 8)
    assert set(rollouts.seconds) == {"sync", "generate", "score"}


def test_an_engine_that_returns_something_else_than_was_asked_for_is_refused():
    class Broken(Engine):
        def generate(self, request, deliver=types.ignore):
            return self.change(super().generate(request))

    engine, policy = Broken(), make_policy()
    pipeline = make_pipeline(engine)
    engine.change = lambda found: [found[0][:-1], *found[1:]]
    with pytest.raises(EngineError, match=r"8 responses .*\[3, 2, 3\].*7, \[2, 2, 3\].*rollout\.engine"):
        pipeline.roll_out(make_batch(), policy, 0)
    engine.change = lambda found: [
        [replace(c, logprobs=c.logprobs * torch.nan) for c in found[0]],
        *found[1:],
    ]
    with pytest.raises(FloatingPointError, match=r"rollout.engine.dtype"):
        pipeline.roll_out(make_batch(), policy, 0)
    policy.weight.data.fill_(torch.inf)
    with pytest.raises(FloatingPointError, match=r"1 of its 1 parameters .* weight\. .*model\.path"):
        pipeline.evaluate(make_batch("test"), policy, 0, ("test", 0, 0))


def test_weights_are_streamed_only_after_the_policy_has_changed():
    engine, policy = Engine(), make_policy()
    pipeline = make_pipeline(engine)
    pipeline.roll_out(make_batch(), policy, 0)
    pipeline.roll_out(make_batch(), policy, 0)
    step_on(policy)
    pipeline.roll_out(make_batch(), policy, 1)
    pipeline.evaluate(make_batch("val"), policy, 1, ("validate", 0, 0))
    assert [float(synced["weight"]) for synced in engine.synced] == [0.0, 1.0]
    step_on(policy)  # as a checkpoint does that is loaded
    pipeline.weights_replaced()
    pipeline.evaluate(make_batch("val"), policy, 1, ("validate", 0, 1))
    assert [float(synced["weight"]) for synced in engine.synced] == [0.0, 1.0, 2.0]
    assert (engine.slept, engine.closed) == (3, 0), "asleep during each update, and shared by all stages"


def test_weights_go_to_the_engine_under_the_names_that_the_caller_gives_them():
    engine = Engine()
    pipeline = make_pipeline(
        engine, weights=lambda policy, **_: [("model.weight", policy.weight.detach() + 5)]
    )
    pipeline.roll_out(make_batch(), make_policy(), 0)
    assert {name: float(tensor) for name, tensor in engine.synced[0].items()} == {"model.weight": 5.0}


def test_every_batch_has_a_seed_of_its_own_that_follows_from_the_run():
    def seeds(**options):
        engine, policy = Engine(), make_policy()
        pipeline = make_pipeline(engine, **options)
        for step in range(2):
            pipeline.roll_out(make_batch(), policy, step)
            pipeline.evaluate(make_batch("val"), policy, step, ("validate", 0, step))
            pipeline.evaluate(make_batch("test"), policy, step, ("test", 0, step))
        return [request.seed for request in engine.requests]

    first = seeds()
    assert len(set(first)) == 6
    assert seeds() == first
    assert set(seeds(seed=1)).isdisjoint(first)


def test_a_resumed_pipeline_goes_on_counting():
    engine, whole, policy = Engine(), Engine(), make_policy()
    pipeline = make_pipeline(engine)
    pipeline.roll_out(make_batch(), policy, 0)
    resumed = make_pipeline(engine)
    resumed.load_state_dict(pipeline.state_dict())
    resumed.roll_out(make_batch(), policy, 1)
    undisturbed = make_pipeline(whole)
    for step in range(2):
        undisturbed.roll_out(make_batch(), policy, step)
    assert [r.seed for r in engine.requests] == [r.seed for r in whole.requests]
    assert resumed.ledger == undisturbed.ledger
    assert resumed.ledger == {"prompts": 6, "rollouts": 16, "tokens": 30, "discarded_questions": 0}


def test_scalars_are_means_over_all_responses_and_totals_of_the_run():
    pipeline, policy = make_pipeline(Engine()), make_policy()
    pipeline.roll_out(make_batch(), policy, 0)
    first = pipeline.scalars
    pipeline.roll_out(make_batch(), policy, 3)
    assert first["rollout/correct"] == 0.5
    assert first["rollout/correct_original"] == pytest.approx(0.4)
    assert first["rollout/correct_rephrasings"] == pytest.approx(2 / 3)
    assert first["rollout/length"] == 15 / 8
    assert first["rollout/truncated"] == 0.25
    assert first["rollout/entropy"] == pytest.approx(0.5)
    assert first["rollout/rephrasings"] == 0.5, "of two questions one has one"
    assert (first["budget/rollouts"], pipeline.scalars["budget/rollouts"]) == (8, 16)
    assert (first["budget/updates"], pipeline.scalars["budget/updates"]) == (0, 3)


def test_reward_terms_are_added_in_training_and_kept_apart_from_the_verdict():
    terms = {
        "long": lambda rollouts, groups: -0.1 * rollouts.lengths,
        "id": lambda rollouts, groups: torch.full((8,), 0.5),
    }
    pipeline, policy = make_pipeline(Engine(), reward_terms=terms), make_policy()
    rollouts = pipeline.roll_out(make_batch(), policy, 0).rollouts
    assert rollouts.correct.tolist() == [True, False, False, False, True, False, True, True]
    torch.testing.assert_close(rollouts.rewards, rollouts.correct.float() + 0.5 - 0.1 * rollouts.lengths)
    torch.testing.assert_close(rollouts.reward_terms["long"], -0.1 * rollouts.lengths)
    assert pipeline.scalars["rollout/reward_term/long"] == pytest.approx(-0.1 * 15 / 8)
    evaluated = pipeline.evaluate(make_batch("test"), policy, 0, ("test", 0, 0)).rollouts
    assert (evaluated.reward_terms, evaluated.rewards.tolist()) == ({}, evaluated.correct.float().tolist())


def test_a_replayed_success_joins_its_prompt_and_is_not_paid_for_again():
    def three_of(*names):
        batch = asking(*names)
        batch.prompts = [prompt._replace(num_samples=3) for prompt in batch.prompts]
        return batch

    engine, policy = Engine(), make_policy()
    pipeline = make_pipeline(engine, replay=SuccessReplay(ratio=0.5, start=0.3))
    policy.response_entropy = lambda prompts, responses: torch.zeros(len(responses))
    pipeline.roll_out(three_of("mixed a", "mixed b"), policy, 0)
    rollouts = pipeline.roll_out(three_of("mixed c", "mixed d"), policy, 1).rollouts
    assert [request.num_samples for request in engine.requests] == [[3, 3], [3, 2]]
    assert rollouts.replayed.tolist() == [False] * 5 + [True]
    assert rollouts.prompt.tolist() == [0, 0, 0, 1, 1, 1]
    assert rollouts.token_ids[5].tolist() == [0]
    assert rollouts.correct.tolist() == [True, False, False, True, False, True]
    # Two of the five new responses are correct; eleven responses were sampled in all.
    assert pipeline.scalars["rollout/correct"] == pytest.approx(0.4)
    assert pipeline.ledger["rollouts"] == 11
    assert (pipeline.scalars["replay/questions"], pipeline.scalars["replay/successes"]) == (3, 3)
    resumed = make_pipeline(Engine(), replay=SuccessReplay())
    resumed.load_state_dict(pipeline.state_dict())
    assert list(resumed.replay.records) == list(pipeline.replay.records)
    assert resumed.replay.memory.records == pipeline.memory.records


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
    first, later, expected, discarded
):
    draws, observed = [asking(*names) for names in later], []
    memory = QuestionMemory()
    pipeline = make_pipeline(Engine(), dynamic_sampling=DynamicSampling("prompt", max_draws=2), memory=memory)
    batch = asking(*first)

    limit_reached = "flat" in expected
    with pytest.warns(UserWarning, match="max_draws") if limit_reached else nullcontext():
        learned = pipeline.roll_out(
            batch, make_policy(), 0, draw=lambda: draws.pop(0), observe=observed.extend
        )
    assert pipeline.scalars["dynamic_sampling/limit_reached"] == limit_reached
    assert pipeline.scalars["dynamic_sampling/draws"] == discarded / 2
    assert [group.id for group in learned.groups] == expected
    assert [group.id for group in batch.groups] == first, "the batch that was given stays as it is"
    assert learned.rollouts.question.tolist() == [0, 0, 1, 1]
    drawn = 2 + discarded
    assert pipeline.ledger["discarded_questions"] == discarded
    assert pipeline.ledger["rollouts"] == 2 * drawn, "what is thrown away is paid for"
    assert list(memory.records) == [*first, *sum(later, [])][:drawn], "and tells how hard its question is"
    assert [sum(visit.samples) for visit in observed] == [2] * drawn
    assert learned.rollouts.history.samples.tolist() == [0] * 4, "nothing was known before"


def test_the_verifier_is_asked_once_a_batch_and_closed():
    engine, verifier = Engine(), Verifier(fails=["0"])
    pipeline = make_pipeline(engine, verifier)
    for step in range(2):
        pipeline.roll_out(make_batch(), make_policy(), step)
    assert (verifier.batches, verifier._closed) == (2, 0)
    assert pipeline.failures == {"timeout": 6}, (
        "the first response to each of the three prompts, in two batches"
    )
    assert pipeline.scalars["rollout/without_verdict"] == 3 / 8
    pipeline.close()
    assert (verifier._closed, engine.closed) == (1, 1)


@pytest.mark.parametrize("stage", ["fit", "validate"])
def test_a_request_names_the_iteration_that_learns_from_it(stage):
    engine = Engine()
    pipeline = make_pipeline(engine)
    policy = make_policy()
    if stage == "fit":
        for step in range(2):
            pipeline.roll_out(make_batch(), policy, step)
    else:
        pipeline.evaluate(make_batch(), policy, 0, ("validate", 0, 0))
    assert [request.iteration for request in engine.requests] == ([0, 1] if stage == "fit" else [None])


def test_what_lacks_something_is_refused_by_name_when_the_pipeline_is_built():
    class NoVerifier:
        def __call__(self, response, reference):
            return Score(True, None)

    class NoEngine:
        def sync(self, parameters):
            pass

    with pytest.raises(
        TypeError,
        match=r"rollout\.verifier.*check_reference.*in_background.*score_async",
    ):
        make_pipeline(Engine(), NoVerifier())
    with pytest.raises(TypeError, match=r"rollout\.engine.*asynchronous"):
        RolloutPipeline(NoEngine, Verifier(), decode, SamplingConfig())
    with pytest.raises(TypeError, match=r"rollout\.reward_terms\.bonus to be a RewardTerm"):
        make_pipeline(Engine(), reward_terms={"bonus": 0.5})
    late = make_pipeline(NoEngine())  # of a function nobody knows what it makes
    with pytest.raises(TypeError, match=r"rollout\.engine to be a Engine "):
        late.roll_out(make_batch(), make_policy(), 0)


def test_engines_that_share_the_trainers_device_are_not_sampled_from_while_it_learns():
    with pytest.raises(ValueError, match=r"VLLMEngine.*rollout=vllm_server"):
        RolloutPipeline(partial(VLLMEngine, "x"), Verifier(), decode, SamplingConfig(), ahead=1)
    RolloutPipeline(partial(VLLMEngine, "x"), Verifier(), decode, SamplingConfig())
    late = make_pipeline(Engine(), ahead=1)
    with pytest.raises(ValueError, match=r"rollout\.ahead, but Engine "):
        late.roll_out(make_batch(), make_policy(), 0)


def test_dynamic_sampling_is_refused_with_several_batches_ahead_whose_questions_it_would_take():
    with pytest.raises(ValueError, match=r"rollout\.ahead.*2"):
        make_pipeline(Engine(), dynamic_sampling=DynamicSampling(), ahead=2)
    with pytest.raises(ValueError, match=r"rollout\.ahead.*-1"):
        make_pipeline(Engine(), ahead=-1)


def test_replay_is_refused_beside_asynchronous_sampling():
    with pytest.raises(ValueError, match=r"rollout\.replay=null"):
        make_pipeline(Engine(), replay=SuccessReplay(), ahead=1)


def test_what_an_option_needs_is_asked_for_by_name():
    with pytest.raises(ValueError, match=r"draw=…\) with rollout\.dynamic_sampling"):
        make_pipeline(Engine(), dynamic_sampling=DynamicSampling()).roll_out(asking("flat"), make_policy(), 0)


def test_a_plain_loop_learns_with_a_real_engine(tiny_policy):
    """REINFORCE with a baseline on one token, without Lightning: a response is correct when it begins with `7`."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy)
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    pipeline = RolloutPipeline(
        partial(TransformersEngine, str(tiny_policy)),
        FirstCharacter(),
        partial(tokenizer.batch_decode, skip_special_tokens=True),
        SamplingConfig(max_new_tokens=1),
    )
    prompt = torch.tensor([10, 11, 12])
    shares = []
    for step in range(12):
        group = QuestionGroup("a", "q", (), ("7",))
        batch = QuestionBatch(groups=[group], prompts=[Prompt(0, 0, "plain", "q", prompt, prompt, 256)])
        rollouts = pipeline.roll_out(batch, model, step).rollouts
        shares.append(float(rollouts.rewards.mean()))
        logprobs = torch.log_softmax(model(prompt[None]).logits[0, -1], -1)[
            torch.cat(list(rollouts.token_ids))
        ]
        torch.testing.assert_close(
            logprobs.detach(), torch.cat(list(rollouts.logprobs)), atol=1e-4, rtol=1e-4
        )
        optimizer.zero_grad()
        (-(rollouts.rewards - rollouts.rewards.mean()) * logprobs).sum().backward()
        optimizer.step()
    pipeline.close()
    assert sum(shares[-3:]) > sum(shares[:3]) + 0.5


class FirstCharacter(types.Verifier):
    """Compares the first character with the reference."""

    def __call__(self, response, reference):
        return Score(response[:1] in reference, response[:1])


class Varying(types.Reformulator):
    """Asks each question anew, reformulated in `forms` ways, and gives every response two points more."""

    def __init__(self, *forms):
        self.forms, self.asked = forms, 0

    def extend(self, batch, ask):
        groups = [
            group._replace(id=f"{group.id} {form}", rephrasings=(form,), kinds=("wording",))
            for group in batch.groups
            for form in self.forms
        ]
        parts = [ask(groups[::2]), ask(groups[1::2])]
        self.asked += sum(len(part.groups) for part in parts)
        for part in parts:
            part.rollouts = replace(part.rollouts, rewards=part.rollouts.rewards + 2)
        return parts

    def state_dict(self):
        return {"asked": self.asked}

    def load_state_dict(self, state):
        self.asked = state["asked"]


def reformulated(groups):
    """One prompt for the rephrasing of each question, of two responses."""
    prompts = [
        Prompt(row, 1, "plain", g.rephrasings[0], IDS, IDS, 2, kind=g.kinds[0])
        for row, g in enumerate(groups)
    ]
    return QuestionBatch(groups=list(groups), prompts=prompts)


def test_what_is_reformulated_in_the_loop_joins_the_batch_as_questions_of_their_own():
    engine, memory, observed = Engine(), QuestionMemory(), []
    pipeline = make_pipeline(engine, reformulator=Varying("r", "s"), memory=memory)
    options = {"reformulated": reformulated, "observe": observed.append}
    batch = pipeline.roll_out(asking("mixed", "flat"), make_policy(), 0, **options)
    rollouts = batch.rollouts
    assert [group.id for group in batch.groups] == ["mixed", "flat", "mixed r", "flat r", "mixed s", "flat s"]
    assert rollouts.question.tolist() == rollouts.prompt.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert [(prompt.question, prompt.text) for prompt in batch.prompts[2:]] == [
        (2, "r"),
        (3, "r"),
        (4, "s"),
        (5, "s"),
    ]
    assert rollouts.prompts == batch.prompts
    assert rollouts.rephrasing.tolist() == [0] * 4 + [1] * 8
    assert rollouts.correct.tolist() == [True, False, False, False] * 3, "by the answers of their question"
    assert rollouts.rewards.tolist() == [1.0, 0.0, 0.0, 0.0] + [3.0, 2.0, 2.0, 2.0] * 2
    assert len({request.seed for request in engine.requests}) == 3
    assert pipeline.ledger == {"prompts": 6, "rollouts": 12, "tokens": 18, "discarded_questions": 0}
    assert pipeline.scalars["rollout/correct_rephrasings"] == 0.25
    assert set(memory.records) == {"mixed", "flat"}
    assert len(observed) == 1, "what is made on the way is not remembered"
    assert [column.tolist() for column in rollouts.history] == [[0] * 12] * 3
    pipeline.roll_out(asking("mixed", "flat"), make_policy(), 0, **options)
    assert len({request.seed for request in engine.requests}) == 6


def test_with_dynamic_sampling_only_reformulations_with_a_gradient_join():
    options = {"dynamic_sampling": DynamicSampling("prompt", max_draws=1), "memory": QuestionMemory()}
    engine = Engine()
    pipeline = make_pipeline(engine, reformulator=Varying("r"), **options)
    drawn = asking("flat 2", "mixed 2")
    drawn.groups[1] = drawn.groups[1]._replace(answer=("1",))
    batch = pipeline.roll_out(
        asking("mixed", "flat"), make_policy(), 0, draw=lambda: drawn, reformulated=reformulated
    )
    assert [group.id for group in batch.groups] == ["mixed", "mixed 2", "mixed r", "mixed 2 r"]
    assert batch.rollouts.correct.tolist() == [True, False, False, True] * 2
    assert (pipeline.ledger["rollouts"], pipeline.ledger["discarded_questions"]) == (12, 2)
    assert len({request.seed for request in engine.requests}) == 4, "two batches, and two that are asked"
    options = {"draw": lambda: asking("flat"), "reformulated": reformulated}
    with pytest.warns(UserWarning, match="max_draws"):
        batch = pipeline.roll_out(asking("flat"), make_policy(), 1, **options)
    assert [group.id for group in batch.groups] == ["flat"]


def test_a_reformulator_that_lacks_something_or_has_nobody_to_ask_is_refused():
    with pytest.raises(TypeError, match=r"rollout.reformulator .*extend"):
        make_pipeline(Engine(), reformulator=object())
    with pytest.raises(ValueError, match=r"reformulated=….*rollout.reformulator"):
        make_pipeline(Engine(), reformulator=Varying("r")).roll_out(asking("mixed"), make_policy(), 0)


@pytest.mark.parametrize(
    "parts",
    [None, 3, [None], ["batch"], [asking("mixed")], (part for part in ())],
    ids=["none", "number", "list of none", "list of texts", "no rollouts", "generator"],
)
def test_a_reformulator_that_returns_something_else_than_scored_batches_is_named(parts):
    class Mine(Varying):
        def extend(self, batch, ask):
            return parts

    with pytest.raises(TypeError, match=r"Mine \(rollout\.reformulator\)"):
        make_pipeline(Engine(), reformulator=Mine("r")).roll_out(asking("mixed"), make_policy(), 0)


@pytest.mark.parametrize(
    "responses",
    [
        lambda right: None, lambda right: 3, lambda right: [None] * len(right), lambda right: [[None]] * len(right),
        lambda right: [[torch.ones(2)]] * len(right), lambda right: [samples[:-1] for samples in right],
        lambda right: right[:-1], lambda right: [samples * 2 for samples in right],
        lambda right: [[LONG] * len(samples) for samples in right],
    ],
)  # fmt: skip
def test_an_engine_that_returns_something_else_than_the_responses_is_named(responses):
    class Mine(Engine):
        def generate(self, request, deliver=types.ignore):
            return responses(super().generate(request))

    with pytest.raises((TypeError, EngineError), match=r"rollout\.engine"):
        make_pipeline(Mine()).roll_out(asking("mixed"), make_policy(), 0)


def test_tensors_of_an_engine_on_another_device_are_refused():
    class Elsewhere(Engine):
        def generate(self, request, deliver=types.ignore):
            found = super().generate(request)
            return [
                [replace(sample, logprobs=sample.logprobs.to("meta")) for sample in samples]
                for samples in found
            ]

    with pytest.raises(TypeError, match=r"Elsewhere \(rollout\.engine\).*float32 \[\d\] on meta"):
        make_pipeline(Elsewhere()).roll_out(asking("mixed"), make_policy(), 0)


def test_a_run_that_was_asked_to_stop_while_a_reformulator_asks_is_no_error_of_the_reformulator():
    class Stopping(Engine):
        def generate(self, request, deliver=types.ignore):
            if self.asked:
                raise EndOfRun(0)
            self.asked = True
            return super().generate(request)

    engine = Stopping()
    engine.asked = False
    pipeline = make_pipeline(engine, reformulator=Varying("r"))
    with pytest.raises(EndOfRun):
        pipeline.roll_out(asking("mixed"), make_policy(), 0, reformulated=reformulated)


def test_the_state_of_a_reformulator_is_resumed():
    pipeline = make_pipeline(Engine(), reformulator=Varying("r"))
    pipeline.roll_out(asking("mixed", "flat"), make_policy(), 0, reformulated=reformulated)
    resumed = make_pipeline(Engine(), reformulator=Varying("r"))
    resumed.load_state_dict(pipeline.state_dict())
    assert resumed.reformulator.asked == 2
    make_pipeline(Engine()).load_state_dict(pipeline.state_dict())  # as a run that goes on without


def test_two_ranks_ask_what_one_process_asks(monkeypatch):
    """Also where a rank has nothing to ask."""

    class Solved(Varying):
        def extend(self, batch, ask):
            own = take_questions(batch, batch.rollouts.question[batch.rollouts.correct].unique())
            return super().extend(own, ask)

    def rolled_out(*names):
        pipeline = make_pipeline(
            Engine(), reformulator=Solved("r", "s"), memory=QuestionMemory(), reward_terms=TERMS
        )
        return pipeline, pipeline.roll_out(asking(*names), make_policy(), 0, reformulated=reformulated)

    def described(batch):
        rollouts = batch.rollouts
        names = [batch.groups[row].id for row in rollouts.question.tolist()]
        return sorted(zip(names, rollouts.text, rollouts.rewards.tolist(), strict=True))

    single, whole = rolled_out("mixed", "mixed 2", "flat", "flat 2")
    found = {}
    modules = (distributed, pipeline_module, dynamic_sampling, memory_module)
    shares = [("mixed", "mixed 2"), ("flat", "flat 2")]
    on_two_ranks(monkeypatch, lambda rank: found.update({rank: rolled_out(*shares[rank])}), *modules)
    assert sorted(described(found[0][1]) + described(found[1][1])) == described(whole)
    assert len(found[1][1].groups) == 2, "nothing of it was solved"
    for pipeline, _ in found.values():
        assert pipeline.ledger == single.ledger
        assert pipeline.scalars == single.scalars
        assert pipeline.memory.records == single.memory.records


def test_responses_without_a_verdict_are_a_share_of_all_that_were_sampled():
    pipeline = make_pipeline(Engine(), Verifier(fails=["0"]), dynamic_sampling=DynamicSampling(max_draws=3))
    pipeline.roll_out(asking("a", "b"), make_policy(), 0, draw=lambda: asking("c", "d"))
    assert pipeline.ledger["rollouts"] == 4 * 4
    assert pipeline.scalars["rollout/without_verdict"] == 0.5, "the first of each two responses"
