"""Training with two stock vLLM servers on CPUs, also when they are killed or lack a flag."""

from __future__ import annotations

import re
import time

import pandas as pd
import pytest
import torch

from tagrpo.rollouts import EngineError, SamplingConfig
from tagrpo.rollouts.servers.server_calls import VLLMServer
from tagrpo.rollouts.servers.vllm_server import ROUTE, VLLMServerEngine
from tagrpo.rollouts.transfer.flags import GUARD, LOGPROBS
from tagrpo.types import Request
from tests.helpers import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

MISMATCH = 1e-4
"""Nats by which rounding may move a log-prob; log-probs of another softmax differ by more than a hundred times that."""


@pytest.fixture(scope="module")
def pair(vllm_servers, vllm_server):
    """URLs of two servers."""
    return [vllm_server, vllm_servers.start()]


def engine_of(model, urls, **options):
    defaults = {"dtype": "float32", "timeout": 120, "patience": 300, "check_weights": True}
    return VLLMServerEngine(str(model), urls, **{**defaults, **options})


def both_ready(model, urls):
    engine = engine_of(model, urls, check_weights=False)  # which sends nothing
    wait_until(lambda: set(engine._prepared()[0]) == set(urls))


def train_on(model, directory, urls, *overrides):
    """Weights after the run, and what it has logged, without times."""
    settings = [
        "rollout=vllm_server", f"rollout.engine.url=[{','.join(urls)}]", "rollout.engine.dtype=float32", "iterations=3",
        f"model.path={model}", "threads=1", "callbacks=[zero_gradient]", "data.train.size=8", "data.batch_size=2",
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
def undisturbed(tiny_policy, pair, tmp_path_factory):
    both_ready(tiny_policy, pair)
    return train_on(tiny_policy, tmp_path_factory.mktemp("undisturbed"), pair)


def assert_same(run, other):
    """Responses are the same; log-probs of another batch of the server may round otherwise."""
    (weights, logged), (other_weights, other_logged) = run, other
    assert logged["budget/tokens"].equals(other_logged["budget/tokens"])
    print(
        "largest difference",
        max(float((other_weights[name] - tensor).abs().max()) for name, tensor in weights.items()),
    )
    for name, tensor in weights.items():
        torch.testing.assert_close(other_weights[name], tensor, atol=1e-5, rtol=1e-5)


def test_a_training_samples_from_the_weights_that_it_sends(undisturbed):
    _, logged = undisturbed
    assert logged["rollout/engine_mismatch_max"].dropna().max() < MISMATCH
    assert len(logged["rollout/engine_mismatch_max"].dropna()) == 3


def test_one_server_samples_what_two_do(undisturbed, tiny_policy, pair, tmp_path):
    assert_same(undisturbed, train_on(tiny_policy, tmp_path, pair[:1]))


def test_greedy_responses_are_those_of_colocated_vllm(tiny_policy, pair, vllm_engine):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(3, 60, (length,), generator=generator) for length in (3, 9, 20)]
    request = Request(prompts, [1, 1, 1], SamplingConfig(max_new_tokens=40, temperature=0.0), 0)
    engine = engine_of(tiny_policy, pair)
    for each in (engine, vllm_engine):
        each.sync(model.named_parameters())
    found, expected = engine.generate(request), vllm_engine.generate(request)
    for (one,), (other,) in zip(found, expected, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        torch.testing.assert_close(one.logprobs, other.logprobs, atol=1e-5, rtol=1e-5)


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
    moment, undisturbed, tiny_policy, pair, vllm_servers, tmp_path, monkeypatch
):
    second = pair[1]
    both_ready(tiny_policy, pair)
    killed, plain, calls = [], VLLMServer.post, []

    def post(server, path, *arguments, **options):
        if server.url == second and path == MOMENTS[moment]:
            calls.append(path)
            if len(calls) == 2 and not killed:
                killed.append(time.monotonic())
                vllm_servers.kill(second)
        return plain(server, path, *arguments, **options)

    monkeypatch.setattr(VLLMServer, "post", post)
    run = train_on(tiny_policy, tmp_path, pair)
    assert killed
    assert_same(undisturbed, run)
    vllm_servers.start(second)


def test_a_run_whose_servers_have_all_been_killed_ends_in_a_sentence(
    undisturbed, tiny_policy, pair, vllm_servers, tmp_path, monkeypatch
):
    both_ready(tiny_policy, pair)
    killed, plain = [], VLLMServer.post

    def post(server, path, *arguments, **options):
        if path == ROUTE and not killed:
            killed.append(time.monotonic())
            for url in pair:
                vllm_servers.kill(url)
        return plain(server, path, *arguments, **options)

    monkeypatch.setattr(VLLMServer, "post", post)
    with pytest.raises(EngineError, match=rf"rollout\.engine\.patience.*{pair[0]}"):
        train_on(tiny_policy, tmp_path, pair, "rollout.engine.patience=5")
    for url in pair:
        vllm_servers.start(url)


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
