"""Loader, replay, dynamic sampling and sampling ahead, saved and resumed at any moments: all comes out as before."""

from __future__ import annotations

import io
from dataclasses import fields

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tagrpo import types
from tagrpo.contrib.exgrpo.replay import SuccessReplay
from tagrpo.datamodules.loader import QuestionLoader
from tagrpo.rollouts import RolloutPipeline, SamplingConfig
from tagrpo.rollouts.dynamic_sampling import DynamicSampling
from tagrpo.seeds import derive_seed
from tagrpo.types import Completion, Prompt, QuestionBatch, QuestionGroup, Score


class Engine(types.Engine):
    """Responses that follow from the weights, the request and its seed, and from nothing else."""

    asynchronous = True

    def sync(self, parameters):
        (self.weight,) = (float(tensor) for _, tensor in parameters)

    def generate(self, request, deliver=types.ignore):
        def sample(row, number):
            generator = torch.Generator().manual_seed(
                derive_seed(request.seed, repr(self.weight), row, number)
            )
            ids = torch.randint(9, (int(torch.randint(1, 4, (), generator=generator)),), generator=generator)
            return Completion(
                token_ids=ids, logprobs=-torch.rand(len(ids), generator=generator), truncated=False
            )

        return [
            [sample(row, number) for number in range(count)] for row, count in enumerate(request.num_samples)
        ]

    def generate_async(self, request, deliver=types.ignore):
        completions = self.generate(request)
        return lambda: completions


class Verifier(types.Verifier):
    """Even first tokens are correct."""

    def __call__(self, response, reference):
        return Score(int(response) % 2 == 0, response)


def make_batch(groups, epoch):
    prompts = [
        Prompt(row, version, "plain", f"{group.id}/{version}/{epoch}", ids, ids, 2)
        for row, group in enumerate(groups)
        for version, ids in enumerate([torch.tensor([int(group.id), epoch]), torch.tensor([epoch])])
    ]
    return QuestionBatch(groups=list(groups), prompts=prompts)


def entropy(prompts, responses):
    return torch.tensor([float(response.sum()) for response in responses])


class Run:
    """One process."""

    def __init__(self, questions, batch_size, ahead, seed):
        groups = [QuestionGroup(str(i), f"q{i}", ("r",), ("0",)) for i in range(questions)]
        self.loader = QuestionLoader(groups, make_batch, batch_size, shuffle=True, drop_last=True, seed=seed)
        self.pipeline = RolloutPipeline(
            Engine,
            Verifier(),
            lambda ids: [str(int(one[0])) for one in ids],
            SamplingConfig(max_new_tokens=4),
            dynamic_sampling=None if ahead > 1 else DynamicSampling(max_draws=1),
            replay=None if ahead else SuccessReplay(start=0.0, seed=seed),
            seed=seed,
            ahead=ahead,
        )
        self.policy, self.step, self.batches = torch.nn.Linear(1, 1, bias=False), 0, None
        self.policy.response_entropy = entropy
        torch.nn.init.zeros_(self.policy.weight)

    def train(self):
        """An iteration; all that was learned from."""
        if self.batches is None:
            self.batches = iter(self.loader)
            if self.pipeline.replay is not None:
                memory = self.pipeline.memory
                self.loader.serve_by(lambda id: 0.0 if memory[id].solved_in_full else 1.0)
        # A trainer takes as many batches as the loader's length says, then begins anew.
        batch = next(self.batches, None) if self.loader.served < len(self.loader) else None
        while batch is None:
            self.batches = iter(self.loader)
            batch = next(self.batches, None)
        batch = self.pipeline.roll_out(batch, self.policy, self.step, draw=self.loader.draw)
        rollouts = batch.rollouts
        if (begun := len(self.pipeline.following)) < self.pipeline.ahead:
            following = self.loader.peek(begun + self.pipeline.ahead)[begun:]
            self.pipeline.sample_next(following, self.policy, self.step, types.Seconds())
        with torch.no_grad():
            self.policy.weight += rollouts.rewards.mean() + 0.1 * len(rollouts)
        self.step += 1
        learned = {
            f.name: getattr(rollouts, f.name)
            for f in fields(rollouts)
            if f.name not in ("seconds", "prompts")
        }
        return repr(
            (
                self.loader.state_dict(),
                [g.id for g in batch.groups],
                batch.prompts,
                learned,
                self.policy.weight.tolist(),
            )
        )

    def save(self):
        state = {
            "loader": self.loader.state_dict(),
            "pipeline": self.pipeline.state_dict(),
            "step": self.step,
        }
        file = io.BytesIO()
        torch.save({**state, "policy": self.policy.state_dict()}, file)
        return file.getvalue()

    def load(self, saved):
        state = torch.load(io.BytesIO(saved), weights_only=True)
        self.policy.load_state_dict(state["policy"])
        self.step = state["step"]
        self.pipeline.weights_replaced()
        self.pipeline.load_state_dict(state["pipeline"])
        self.loader.load_state_dict(state["loader"])


class Training(RuleBasedStateMachine):
    """Whatever is saved and resumed when, each iteration is what it was the first time."""

    @initialize(
        questions=st.integers(4, 9),
        batch_size=st.integers(1, 4),
        ahead=st.integers(0, 3),
        seed=st.integers(0, 99),
    )
    def start(self, questions, batch_size, ahead, seed):
        self.options = (questions, batch_size, ahead, seed)
        self.run, self.saved, self.history = Run(*self.options), None, []

    @rule(times=st.integers(1, 4))
    def train(self, times):
        for _ in range(times):
            at, learned = self.run.pipeline.iteration, self.run.train()
            if at < len(self.history):
                assert learned == self.history[at]
            else:
                self.history.append(learned)

    @rule()
    def save(self):
        self.saved = self.run.save()

    @rule()
    @precondition(lambda self: self.history)
    def die_and_resume(self):
        self.run = Run(*self.options)
        if self.saved is not None:
            self.run.load(self.saved)


Training.TestCase.settings = settings(max_examples=15, stateful_step_count=12)
TestTraining = Training.TestCase
