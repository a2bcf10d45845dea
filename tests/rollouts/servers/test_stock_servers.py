"""Training with two stock vLLM servers on CPUs, also when they are killed or lack a flag."""

from __future__ import annotations

import re
import time

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM

from tagrpo.rollouts import EngineError, SamplingConfig
from tagrpo.rollouts.servers.server_calls import VLLMServer
from tagrpo.rollouts.servers.vllm_server import ROUTE, VLLMServerEngine
from tagrpo.rollouts.transfer.flags import GUARD, LOGPROBS
from tagrpo.starter import starter_path
from tagrpo.types import Request
from tests.helpers import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

MISMATCH = 1e-4
"""Nats by which rounding may move a log-prob; log-probs of another softmax differ by more than a hundred times that."""


STARTER = str(starter_path())


@pytest.fixture(scope="module")
def pair(vllm_servers):
    """URLs of two servers of the starter policy, which learns."""
    return [vllm_servers.start(model=STARTER), vllm_servers.start(model=STARTER)]


def engine_of(model, urls, **options):
    defaults = {"dtype": "float32", "timeout": 120, "patience": 300, "check_weights": True}
    return VLLMServerEngine(str(model), urls, **{**defaults, **options})


def both_ready(urls):
    engine = engine_of(STARTER, urls, check_weights=False)  # which sends nothing
    wait_until(lambda: set(engine._prepared()[0]) == set(urls))


def train_on(directory, urls, *overrides):
    """Weights after the run, and what it has logged, without times."""
    settings = [
        "rollout=vllm_server", f"rollout.engine.url=[{','.join(urls)}]", "rollout.engine.dtype=float32", "iterations=3",
        "threads=1", "callbacks=[zero_gradient]", "data.train.size=8", "data.batch_size=2",
        "data.samples_per_prompt=4", "data.num_rephrasings=1", "optimizer.lr=1e-3", "rollout.sampling.max_new_tokens=24",
        "trainer.limit_val_batches=0", "+trainer.enable_progress_bar=false", "rollout.engine.check_weights=true",
        "rollout.engine.patience=60", "rollout.engine.retries=3", "rollout.engine.timeout=600",
    ]  # fmt: skip
    from tagrpo.cli.train import train
    from tagrpo.settings.config import build, compose_run

    run = build(compose_run(directory, [*settings, *overrides]))
    try:
        train(run.module, run.datamodule, run.trainer, test=False)
    finally:
        run.rollout.pipeline.close()
    logged = pd.read_csv(directory / "metrics.csv")
    columns = [name for name in logged if not name.startswith(("seconds/", "throughput/"))]
    return {name: tensor.clone() for name, tensor in run.module.full_parameters()}, logged[columns]


@pytest.fixture(scope="module")
def undisturbed(pair, tmp_path_factory):
    both_ready(pair)
    return train_on(tmp_path_factory.mktemp("undisturbed"), pair)


def assert_same(run, other):
    """Responses have seeds of their own, so that updates are the same to the bit on whatever servers."""
    (weights, logged), (other_weights, other_logged) = run, other
    assert all(torch.equal(other_weights[name], tensor) for name, tensor in weights.items())
    columns = ["budget/tokens", "rollout/reward", "train/grad_norm"]
    pd.testing.assert_frame_equal(logged[columns], other_logged[columns], check_exact=True)


def test_a_training_samples_from_the_weights_that_it_sends(undisturbed):
    weights, logged = undisturbed
    before = dict(AutoModelForCausalLM.from_pretrained(STARTER).named_parameters())
    assert not torch.equal(weights["model.norm.weight"], before["model.norm.weight"]), "it has learned"
    assert logged["rollout/engine_mismatch_max"].dropna().max() < MISMATCH
    assert len(logged["rollout/engine_mismatch_max"].dropna()) == 3


def test_one_server_samples_what_two_do(undisturbed, pair, tmp_path):
    assert_same(undisturbed, train_on(tmp_path, pair[:1]))


def test_greedy_responses_are_those_of_colocated_vllm(tiny_policy, vllm_server, vllm_engine):
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(3, 60, (length,), generator=generator) for length in (3, 9, 20)]
    request = Request(prompts, [1, 1, 1], SamplingConfig(max_new_tokens=40, temperature=0.0), 0)
    engine = engine_of(tiny_policy, vllm_server)
    for each in (engine, vllm_engine):
        each.sync(model.named_parameters())
    found, expected = engine.generate(request), vllm_engine.generate(request)
    for (one,), (other,) in zip(found, expected, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        torch.testing.assert_close(one.logprobs, other.logprobs, atol=MISMATCH, rtol=0)


MOMENTS = {
    "sampling": ROUTE,
    "before the update": "/start_weight_update",
    "taking weights": "/update_weights",
    "between": "/finish_weight_update",
    "before it resumes": "/resume",
}
"""When a server is killed: as this route is called."""


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_server_that_is_killed_costs_nothing_but_time(
    moment, undisturbed, pair, vllm_servers, tmp_path, monkeypatch
):
    second = pair[1]
    both_ready(pair)
    killed, plain, calls = [], VLLMServer.post, []

    def post(server, path, *arguments, **options):
        if server.url == second and path == MOMENTS[moment]:
            calls.append(path)
            if len(calls) == 2 and not killed:
                killed.append(time.monotonic())
                vllm_servers.kill(second)
        return plain(server, path, *arguments, **options)

    monkeypatch.setattr(VLLMServer, "post", post)
    run = train_on(tmp_path, pair)
    assert killed
    assert_same(undisturbed, run)
    vllm_servers.start(second, model=STARTER)


def test_a_run_whose_servers_have_all_been_killed_ends_in_a_sentence(
    undisturbed, pair, vllm_servers, tmp_path, monkeypatch
):
    both_ready(pair)
    killed, plain = [], VLLMServer.post

    def post(server, path, *arguments, **options):
        if path == ROUTE and not killed:
            killed.append(time.monotonic())
            for url in pair:
                vllm_servers.kill(url)
        return plain(server, path, *arguments, **options)

    monkeypatch.setattr(VLLMServer, "post", post)
    with pytest.raises(EngineError, match=rf"rollout\.engine\.patience.*{pair[0]}"):
        train_on(tmp_path, pair, "rollout.engine.patience=5")
    for url in pair:
        vllm_servers.start(url, model=STARTER)


@pytest.mark.parametrize("flag", [GUARD, LOGPROBS])
def test_a_real_server_without_a_flag_is_refused_by_its_name(flag, tiny_policy, vllm_servers):
    url = vllm_servers.start(without=[flag])
    refused = []

    def is_refused():
        try:
            engine_of(tiny_policy, url, retries=0, patience=1).sync([])
        except EngineError as error:
            refused.append(str(error))
        return flag in refused[-1]

    wait_until(is_refused)
    assert re.search(r"python -m tagrpo\.rollouts\.transfer\.flags", refused[-1])
    vllm_servers.kill(url)
