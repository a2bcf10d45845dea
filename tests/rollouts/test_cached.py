"""What servers have sampled is kept until a checkpoint covers it, found for equal requests, and not asked for twice."""

from __future__ import annotations

import os
import re
import signal
import threading
import warnings
from collections import Counter
from functools import partial

import pandas as pd
import pytest
import torch

from tagrpo.rollouts import EngineError, SamplingConfig, TransformersEngine
from tagrpo.rollouts.engines.base import ServerEngine
from tagrpo.rollouts.engines.cached import CachedEngine, keep_paid, prune
from tagrpo.rollouts.engines.synced import SyncedEngine, own_parameters
from tagrpo.starter import starter_path
from tagrpo.types import Completion, Request
from tests.rollouts.fake_server import FakeServer

REQUEST = Request(
    prompts=[torch.tensor([5, 6]), torch.tensor([7]), torch.tensor([8, 9])],
    num_samples=[2, 0, 1],
    sampling=SamplingConfig(max_new_tokens=4),
    seed=7,
    iteration=3,
)


class Server(ServerEngine):
    """Responds with the first token of the prompt and its weight; counts the prompts that it was asked for."""

    asynchronous = True
    closed = False

    def __init__(self):
        self.asked = []

    def sync(self, parameters):
        ((_, tensor),) = parameters
        self.weight = float(tensor)

    def respond(self, prompt):
        return Completion(
            token_ids=torch.tensor([int(prompt[0]), 151_935]),
            logprobs=torch.tensor([-0.1 - self.weight, -1e-8]),
            truncated=int(prompt[0]) == 8,
        )

    def generate(self, request, deliver=lambda *_: None):
        self.asked += [int(prompt[0]) for prompt in request.prompts]
        completions = []
        for row, (prompt, count) in enumerate(zip(request.prompts, request.num_samples, strict=True)):
            completions.append([self.respond(prompt) for _ in range(count)])
            if count:
                deliver(row, completions[-1])
        return completions

    def generate_async(self, request, deliver=lambda *_: None):
        return partial(self.generate, request, deliver)

    def close(self):
        self.closed = True


@pytest.fixture
def make(tmp_path):
    """Make a cached server, as a process does that has been started again."""

    def make(weight=0.5, covered=0, server=Server):
        engine = CachedEngine(server, tmp_path, lambda: covered)
        engine.sync([("weight", torch.tensor([weight]))])
        return engine

    return make


def plain(completions):
    return [
        [(c.token_ids.tolist(), c.logprobs.tolist(), c.truncated) for c in samples] for samples in completions
    ]


def generate(engine, request, kind="generate", deliver=lambda *_: None):
    found = getattr(engine, kind)(request, deliver)
    return found if kind == "generate" else found()


@pytest.mark.parametrize("kind", ["generate", "generate_async"])
def test_an_equal_request_is_answered_from_disk_bit_for_bit(kind, make):
    first, again = make(), make()
    sampled = generate(first, REQUEST, kind)
    delivered = []
    found = generate(again, REQUEST, kind, lambda prompt, samples: delivered.append((prompt, len(samples))))
    assert (first.engine.asked, again.engine.asked) == ([5, 7, 8], [])
    assert plain(found) == plain(sampled)
    assert found[0][0].token_ids.dtype == torch.long
    assert delivered == [(0, 2), (2, 1)], "once for each prompt that has samples"


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 8},
        {"num_samples": [2, 1, 1]},
        {"prompts": [torch.tensor([5]), torch.tensor([6, 7]), torch.tensor([8, 9])]},
        {"sampling": SamplingConfig(max_new_tokens=5)},
        {"iteration": 4},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_request_is_sampled(other, make):
    make().generate(REQUEST)
    engine = make()
    engine.generate(REQUEST._replace(**other))
    assert len(engine.engine.asked) == 3


def test_responses_of_other_weights_are_sampled_again_and_replaced(make, tmp_path):
    make(weight=0.5).generate(REQUEST)
    other = make(weight=0.5 + 2**-24)
    assert plain(other.generate(REQUEST)) != []
    assert len(other.engine.asked) == 3
    assert len(list(tmp_path.iterdir())) == 1
    assert make(weight=0.5 + 2**-24).generate(REQUEST) is not None
    once_more = make(weight=0.5)
    once_more.generate(REQUEST)
    assert len(once_more.engine.asked) == 3


def test_one_bit_of_one_weight_makes_other_weights(tmp_path):
    class Model(Server):
        weight = 0.5

        def sync(self, parameters):
            list(parameters)

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2).bfloat16())

    def asked(folder):
        engine = CachedEngine(Model, folder, lambda: 0)
        engine.sync(module.named_parameters())
        engine.generate(REQUEST)
        return len(engine.engine.asked)

    for number, parameter in enumerate(module.parameters()):
        folder = tmp_path / str(number)
        assert (asked(folder), asked(folder)) == (3, 0)
        first = parameter.view(-1)[0]
        with torch.no_grad():
            parameter.view(-1)[0] = torch.nextafter(first, torch.tensor(9.0).to(parameter.dtype))
        assert asked(folder) == 3


def test_evaluations_are_passed_on(make, tmp_path):
    for kind in ("generate", "generate_async"):
        engine = make()
        generate(engine, REQUEST._replace(iteration=None), kind)
        assert len(engine.engine.asked) == 3
    assert not list(tmp_path.iterdir())


def test_a_rank_without_prompts_keeps_nothing_and_finds_it(make):
    empty = REQUEST._replace(prompts=[], num_samples=[])
    assert make().generate(empty) == make().generate(empty) == []


@pytest.mark.parametrize("kind", ["generate", "generate_async"])
def test_a_rank_that_has_its_responses_asks_for_none_while_another_samples(kind, make, monkeypatch):
    sampled = make().generate(REQUEST)
    engine = make()
    monkeypatch.setattr("tagrpo.rollouts.engines.cached.max_over_ranks", lambda lacking: 1)
    requests, real = [], engine.engine.generate
    monkeypatch.setattr(
        engine.engine, "generate", lambda request, deliver: requests.append(request) or real(request, deliver)
    )
    assert plain(generate(engine, REQUEST, kind)) == plain(sampled)
    assert [(request.prompts, request.seed) for request in requests] == [([], 7)], "sampling is collective"


@pytest.mark.parametrize(
    ("response", "error"),
    [
        ({"logprobs": torch.tensor([torch.nan])}, FloatingPointError),
        ({"token_ids": torch.arange(5), "logprobs": torch.zeros(5)}, EngineError),
        (None, TypeError),
    ],
)
def test_what_an_engine_may_not_return_is_refused_and_not_kept(response, error, make, tmp_path):
    class Wrong(Server):
        def respond(self, prompt):
            fields = {"token_ids": torch.tensor([1]), "logprobs": torch.zeros(1), "truncated": False}
            return response and Completion(**{**fields, **response})

    with pytest.raises(error):
        make(server=Wrong).generate(REQUEST)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"half a file", None])
def test_a_damaged_file_counts_as_absent(content, make, tmp_path):
    make().generate(REQUEST)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-40] if content is None else content)
    engine = make()
    with pytest.warns(UserWarning, match=path.name):
        engine.generate(REQUEST)
    assert len(engine.engine.asked) == 3


def test_no_bit_of_a_file_can_flip_and_change_what_is_found(make, tmp_path):
    expected = str(plain(make().generate(REQUEST)))
    (path,) = tmp_path.iterdir()
    engine = make()
    whole, found = path.read_bytes(), []
    for place in range(0, len(whole), 7):
        content = bytearray(whole)
        content[place] ^= 1 << place % 8
        path.write_bytes(content)
        engine.engine.asked.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found.append((str(plain(engine.generate(REQUEST))), bool(engine.engine.asked)))
    assert {text for text, _ in found} == {expected}
    assert sum(asked for _, asked in found) > len(found) // 2, "bits between the records mean nothing"


def test_a_disk_that_refuses_costs_a_warning_and_no_training(make, tmp_path):
    make().generate(REQUEST)
    (path,) = tmp_path.iterdir()
    path.unlink()
    path.mkdir()  # nothing can take the name of a folder, whoever runs this
    with (
        pytest.warns(UserWarning, match=re.escape(str(tmp_path))),
        pytest.warns(UserWarning, match="Skipping"),
    ):
        sampled = make().generate(REQUEST)
    assert [len(samples) for samples in sampled] == [2, 0, 1]
    assert list(tmp_path.iterdir()) == [path]


def test_files_that_a_checkpoint_covers_are_deleted_beside_a_new_one_and_at_the_end(make, tmp_path):
    def kept():
        return sorted(int(path.name.split("-")[0]) for path in tmp_path.iterdir())

    engine = make()
    for iteration in (8, 9, 10, 100):
        engine.generate(REQUEST._replace(iteration=iteration))
    assert kept() == [8, 9, 10, 100]
    engine.covered = lambda: 9
    engine.generate(REQUEST._replace(iteration=101))
    assert kept() == [9, 10, 100, 101]
    engine.covered = lambda: 101
    engine.close()
    assert kept() == [101]
    assert engine.engine.closed


@pytest.mark.parametrize(
    ("own", "left"), [(0, {"000003-0-1.pt"}), (1, {"000001-0-0.pt", "000001-0-2.pt", "000001-0-11.pt"})]
)
def test_rank_0_deletes_what_ranks_that_are_no_more_have_left(own, left, tmp_path, monkeypatch):
    names = [
        "000001-0-0.pt",  # as earlier versions named them
        ".partial-000001-1-0.pt",
        "000001-0-2.pt",
        "000001-0-11.pt",
        "000003-0-1.pt",
        "000001-0-1.pt",
    ]
    for name in names:
        (tmp_path / name).touch()
    monkeypatch.setattr("tagrpo.rollouts.engines.cached.rank", lambda: own)
    monkeypatch.setattr("tagrpo.rollouts.engines.cached.world_size", lambda: 2)
    prune(tmp_path, 3)
    found = {path.name for path in tmp_path.iterdir()}
    assert found >= left | {"000003-0-1.pt"}
    gone = (
        {"000001-0-0.pt", ".partial-000001-1-0.pt", "000001-0-2.pt", "000001-0-11.pt"}
        if own == 0
        else {"000001-0-1.pt"}
    )
    assert found == set(names) - gone


def test_only_servers_are_wrapped_and_what_is_covered_is_deleted(tmp_path):
    old = [tmp_path / "000001-0-0.pt", tmp_path / "000002-0-0.pt"]
    for path in old:
        path.touch()
    local = partial(TransformersEngine, "x")
    assert keep_paid(local, tmp_path, lambda: 2) is local
    assert [path.exists() for path in old] == [False, True]
    made = keep_paid(partial(Server), tmp_path, lambda: 2)()
    assert isinstance(made, CachedEngine)
    assert isinstance(made.engine, Server)
    assert made.asynchronous


class SlowServer(Server):
    asynchronous = False


def test_a_server_that_cannot_sample_ahead_is_refused_before_it_is_made(tmp_path):
    make = keep_paid(partial(SlowServer), tmp_path, lambda: 0)
    with pytest.raises(ValueError, match=r"rollout\.ahead.*SlowServer"):
        SyncedEngine(make, own_parameters, asynchronous=True)
    SyncedEngine(make, own_parameters, asynchronous=False)


class SamplingServer(FakeServer):
    """Samples with transformers from the weights that it was sent; `asked` counts (prompt, seed)."""

    def __init__(self):
        super().__init__()
        self.asked = Counter()
        self.engine = TransformersEngine(str(starter_path()))
        self.one_at_a_time = threading.Lock()

    def inference_v1_generate(self, body):
        params = body["sampling_params"]
        sampling = SamplingConfig(temperature=params["temperature"], max_new_tokens=params["max_tokens"])
        request = Request([torch.tensor(body["token_ids"])], [params["n"]], sampling, params["seed"])
        with self.one_at_a_time:
            self.asked[tuple(body["token_ids"]), params["seed"]] += 1
            self.engine.sync(self.weights.items())
            (samples,) = self.engine.generate(request)
        choices = []
        for index, sample in enumerate(samples):
            pairs = zip(sample.token_ids.tolist(), sample.logprobs.tolist(), strict=True)
            content = [{"token_id": token, "logprob": value} for token, value in pairs]
            versions = [{"version": self.version, "start": 0, "end": len(content)}]
            choices.append(
                {
                    "index": index,
                    "token_ids": sample.token_ids.tolist(),
                    "logprobs": {"content": content},
                    "finish_reason": "length" if sample.truncated else "stop",
                    "weight_versions": versions,
                }
            )
        return {"choices": choices}


@pytest.fixture
def sampling_server():
    server = SamplingServer()
    yield server
    server.close()


def train_on(server, directory, *overrides):
    settings = [
        "rollout=vllm_server", f"rollout.engine.url={server.url}", "rollout.engine.dtype=float32", "iterations=4",
        "threads=1", "callbacks=[zero_gradient,checkpoint]", "callbacks.checkpoint.every=2", "data.train.size=8",
        "data.batch_size=2", "data.samples_per_prompt=4", "data.num_rephrasings=1", "optimizer.lr=1e-3",
        "rollout.sampling.max_new_tokens=12", "trainer.limit_val_batches=0", "+trainer.enable_progress_bar=false",
    ]  # fmt: skip
    from tagrpo.cli.train import train
    from tagrpo.settings.config import build, compose_run

    run = build(compose_run(directory, [*settings, *overrides]))
    train(run.module, run.datamodule, run.trainer, test=False, resume="auto")
    run.rollout.pipeline.close()
    return {name: tensor.clone() for name, tensor in run.module.full_parameters()}


def killed_in_update(number, server, directory, *overrides):
    """Train in a fork that is killed in its training step `number`, when the batch has been sampled."""
    from tagrpo.callbacks import RolloutCallback
    from tagrpo.modules.lightning.policy_module import PolicyModule

    child = os.fork()
    if not child:
        steps = []

        def step(self, batch, batch_idx, real=PolicyModule.training_step):
            steps.append(batch_idx)
            if len(steps) == number:
                (rollout,) = [c for c in self.trainer.callbacks if isinstance(c, RolloutCallback)]
                rollout.pipeline.following.join()
                os.kill(os.getpid(), signal.SIGKILL)
            return real(self, batch, batch_idx)

        PolicyModule.training_step = step
        try:
            train_on(server, directory, *overrides)
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.shell
@pytest.mark.parametrize("ahead", [pytest.param(0, marks=pytest.mark.runs), 1])
def test_a_server_is_not_asked_twice_by_a_run_that_is_killed_before_its_checkpoint(
    ahead, sampling_server, tmp_path
):
    option = f"rollout.ahead={ahead}"
    whole = train_on(sampling_server, tmp_path / "whole", option)
    once = dict(sampling_server.asked)
    assert set(once.values()) == {1}
    assert len(once) == 4 * 2 * 2, "iterations, questions, phrasings"
    sampling_server.asked.clear()
    folder = tmp_path / "killed" / "rollout_cache"
    for number in (1, 2, 1):  # in iterations 0, 1 and, from the checkpoint of two iterations, 2
        killed_in_update(number, sampling_server, tmp_path / "killed", option)
        assert list(folder.iterdir())
    weights = train_on(sampling_server, tmp_path / "killed", option)
    assert sampling_server.asked == once
    assert all(torch.equal(weights[name], whole[name]) for name in whole)
    one, other = (pd.read_csv(tmp_path / name / "metrics.csv") for name in ("whole", "killed"))
    columns = [name for name in one if not name.startswith(("seconds/", "throughput/"))]
    pd.testing.assert_frame_equal(one[columns], other[columns], check_exact=True)
    assert not list(folder.iterdir()), "the last checkpoint covers all of them"
