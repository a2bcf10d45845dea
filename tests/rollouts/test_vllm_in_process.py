"""The colocated engine with vLLM played by a few lines: what it is asked for, and what it leaves behind."""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
from contextlib import nullcontext
from itertools import count
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from tagrpo.rollouts import SamplingConfig, VLLMEngine
from tagrpo.rollouts.engines.vllm import Watch
from tagrpo.types import Request
from tests.helpers import in_fork


class FakeLLM:
    """Answers with the seed of each sample, and disturbs every global state as vLLM does."""

    def __init__(self, **settings):
        self.settings = settings
        self.llm_engine, self.waiting = self, []
        self.model_config = SimpleNamespace(max_model_len=100)
        os.write(2, b"a warning of C++\n")
        self.disturb()

    def disturb(self):
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)
        torch.manual_seed(0)
        torch.set_num_threads(1)
        torch.set_num_threads = lambda _: None

    def enqueue(self, prompts, params, use_tqdm):
        self.waiting = [(f"{row}-suffix", p) for row, p in enumerate(params)]
        return [name for name, _ in self.waiting]

    def has_unfinished_requests(self):
        return bool(self.waiting)

    def step(self):
        self.disturb()
        name, params = self.waiting.pop()
        assert params.flat_logprobs
        seeds = [None if params.seed is None else params.seed + i for i in range(params.n)]
        samples = [
            SimpleNamespace(
                index=i,
                token_ids=(1, 2),
                logprobs=SimpleNamespace(logprobs=[-0.5, -0.25]),
                finish_reason="stop",
                seed=seed,
            )
            for i, seed in enumerate(seeds)
        ]
        self.seeds = [*getattr(self, "seeds", []), seeds]
        return [SimpleNamespace(finished=True, request_id=name.partition("-")[0], outputs=samples)]


def stand_in(llm):
    """A module that takes the place of vLLM."""
    vllm = ModuleType("vllm")
    vllm.LLM = llm
    vllm.SamplingParams = lambda **values: SimpleNamespace(**{"seed": None, **values})
    vllm.TokensPrompt = dict
    return vllm


@pytest.fixture
def make_engine(monkeypatch, tiny_policy):
    monkeypatch.setitem(sys.modules, "vllm", stand_in(FakeLLM))
    return lambda **options: VLLMEngine(str(tiny_policy), **options)


REQUEST = Request(
    [torch.tensor([5, 6]), torch.tensor([7])], [3, 2], SamplingConfig(max_new_tokens=4), seed=11
)


def test_on_gpus_every_sample_has_a_seed_of_its_own_that_follows_from_the_request(make_engine, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.random, "fork_rng", nullcontext)
    found = []
    for seed in (11, 11, 12):
        engine = make_engine()
        engine.generate(Request(REQUEST.prompts, REQUEST.num_samples, REQUEST.sampling, seed))
        found.append([s for seeds in engine.llm.seeds for s in seeds])
    assert None not in found[0]
    assert len(set(found[0])) == 5
    assert found[0] == found[1]
    assert not set(found[0]) & set(found[2])


def test_the_engine_leaves_every_random_state_and_the_number_of_threads_as_they_were(make_engine):
    before = torch.get_num_threads()
    set_num_threads = torch.set_num_threads
    torch.set_num_threads(2)

    def states():
        numpys = np.random.get_state()[1].tolist()  # noqa: NPY002
        return random.getstate(), numpys, torch.get_rng_state().tolist()

    np.random.seed(5)  # noqa: NPY002 (none that the engine itself leaves behind)
    random.seed(5)
    torch.manual_seed(5)
    try:
        expected = states()
        engine = make_engine()
        results = engine.generate(REQUEST)
        assert states() == expected
        assert torch.set_num_threads is set_num_threads
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(before)
    assert [[s.logprobs.tolist() for s in samples] for samples in results] == [
        [[-0.5, -0.25]] * n for n in (3, 2)
    ]


def test_on_cpus_no_request_has_a_seed_since_vllm_fails_on_one_when_a_prefill_is_cut(make_engine):
    engine = make_engine()
    engine.generate(REQUEST)
    assert {seed for seeds in engine.llm.seeds for seed in seeds} == {None}


def test_the_head_is_float32_as_the_trainers_unless_options_say_otherwise(make_engine):
    assert make_engine().llm.settings["hf_overrides"] == {"head_dtype": "float32"}
    assert make_engine(options={"hf_overrides": {}}).llm.settings["hf_overrides"] == {}


@pytest.mark.parametrize("log", [False, True])
def test_what_libraries_say_at_start_goes_to_the_log_file_of_the_run(
    make_engine, tmp_path, capfd, monkeypatch, log
):
    handler = logging.FileHandler(tmp_path / "train.log")
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler] if log else [])
    make_engine()
    handler.close()
    os.write(2, b"of ours")
    said = (tmp_path / "train.log").read_text(), capfd.readouterr().err
    assert said == (("a warning of C++\n", "of ours") if log else ("", "a warning of C++\nof ours"))


def test_no_longer_context_is_planned_for_than_the_models(make_engine):
    found = [make_engine(max_model_len=size).llm.settings["max_model_len"] for size in (100, 1000, None)]
    assert found == [100, 256, None]


class Hanging(FakeLLM):
    """Hangs in the step of the last request."""

    def step(self):
        if len(self.waiting) == 1:
            threading.Event().wait()
        return super().step()


def test_a_step_that_hangs_ends_the_process_and_says_where_and_how_to_go_on(tiny_policy):
    def generate():
        sys.modules["vllm"] = stand_in(Hanging)
        engine = VLLMEngine(str(tiny_policy), step_seconds=2)
        engine.watch.steps = 1
        engine.generate(REQUEST)

    code, said = in_fork(generate)
    assert code == 1, said
    assert "Expected a step of vLLM within 2 s, but it hangs there" in said
    assert "resume=auto" in said
    assert "in step" in said, "the place stands in the trace"


@pytest.mark.parametrize(
    ("steps", "allowed"),
    [
        pytest.param([], 300, id="the first may take ten times as long"),
        pytest.param([1, 2, 3], 30, id="after quick ones"),
        pytest.param([25, 26], 20 * 24, id="after one that took 24 whole seconds"),
    ],
)
def test_a_step_may_take_as_long_as_those_before_it_let_expect(monkeypatch, capsys, steps, allowed):
    watch, ended, ticks = Watch(seconds=30), [], count(1)

    def wait(seconds):
        assert seconds == 1.0
        tick = next(ticks)
        watch.steps = sum(end <= tick for end in steps)
        return bool(ended)

    monkeypatch.setattr(os, "_exit", lambda code: ended.append((code, next(ticks) - 1)))
    watch._wait(SimpleNamespace(wait=wait), threading.get_ident())
    assert ended == [(1, max([*steps, 1]) + allowed)]
    assert f"within {allowed} s" in capsys.readouterr().err
