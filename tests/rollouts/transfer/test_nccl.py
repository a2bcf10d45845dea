"""Weights by NCCL: vLLM's own classes at both ends, real HTTP between them, and a communicator that is played."""

from __future__ import annotations

import os
import threading
import time
from contextlib import nullcontext
from queue import Empty, Full, Queue
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tagrpo.rollouts import EngineError
from tagrpo.rollouts.servers import server_calls
from tagrpo.rollouts.servers.vllm_server import VLLMServerEngine
from tests.helpers import wait_until
from tests.rollouts.fake_server import WEIGHTS, FakeServer, raising, sampled

pytest.importorskip("vllm")
pytestmark = pytest.mark.runs

GROUPS = {}
"""Unique id → communicators that have joined, by rank."""


class Communicator:
    """A communicator whose broadcasts wait for every rank, as NCCL's do, until it is destroyed."""

    def __init__(self, members, rank, world_size):
        self.members, self.rank, self.world_size = members, rank, world_size
        self.inbox, self.aborted = Queue(1), threading.Event()

    @classmethod
    def from_unique_id_bytes(cls, unique_id, rank, world_size, device):
        assert len(unique_id) == 128
        members = GROUPS.setdefault(unique_id, {})
        assert rank not in members
        members[rank] = cls(members, rank, world_size)
        while len(members) < world_size:
            time.sleep(0.01)
        return members[rank]

    def broadcast(self, tensor, src, stream=None):
        assert src == 0
        assert tensor.is_contiguous()
        if self.rank == src:
            for rank in range(1, self.world_size):
                self.until_done(
                    lambda rank=rank: self.members[rank].inbox.put(tensor.clone(), timeout=0.02), Full
                )
        else:
            received = self.until_done(lambda: self.inbox.get(timeout=0.02), Empty)
            assert (received.shape, received.dtype) == (tensor.shape, tensor.dtype)
            tensor.copy_(received)

    def until_done(self, action, busy):
        while not self.aborted.is_set():
            try:
                return action()
            except busy:
                pass
        raise RuntimeError("aborted")

    def destroy(self):
        self.aborted.set()


@pytest.fixture(autouse=True)
def pretended_cuda(monkeypatch):
    from vllm.distributed.device_communicators import pynccl
    from vllm.model_executor.model_loader import reload

    from tagrpo.rollouts.transfer import nccl

    stream = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(pynccl, "PyNcclCommunicator", Communicator)
    monkeypatch.setattr(nccl, "own_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.cuda.nccl, "unique_id", lambda: os.urandom(128))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    for context in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, context, lambda _: nullcontext())
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    # Layers are prepared and put to use as by the other backends, which real servers test.
    monkeypatch.setattr(reload, "initialize_layerwise_reload", lambda model: model.start())
    monkeypatch.setattr(reload, "finalize_layerwise_reload", lambda model, config: model.finish())


class Model(nn.Module):
    """Takes whatever it is given; `held` is what it computes with."""

    def __init__(self):
        super().__init__()
        self.loading, self.held = None, {}

    def start(self):
        self.loading = {}

    def load_weights(self, weights):
        self.loading |= {name: tensor.clone() for name, tensor in weights}

    def finish(self):
        self.held, self.loading = self.loading, None


class NcclServer(FakeServer):
    """A server whose workers have vLLM's own receiving end."""

    def __init__(self, workers=1):
        super().__init__()
        self.count = workers
        self.start_workers()

    def start_workers(self):
        from vllm.config.weight_transfer import WeightTransferConfig
        from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

        self.workers = []
        for rank in range(self.count):
            parallel = SimpleNamespace(data_parallel_index=0, world_size=self.count, rank=rank)
            config = SimpleNamespace(parallel_config=parallel, model_config=None)
            transfer = WeightTransferConfig(backend="nccl")
            engine = NCCLWeightTransferEngine(transfer, config, torch.device("cpu"), Model())
            self.workers.append(engine)

    def restart(self):
        super().restart()
        self.start_workers()

    def on_workers(self, name, *arguments):
        errors = []

        def call(worker):
            try:
                getattr(worker, name)(*arguments)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=call, args=(worker,)) for worker in self.workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return {}

    def tagrpo_flags(self, _):
        return {"lacking": [], "backend": "nccl", "workers": self.count}

    def init_weight_transfer_engine(self, body):
        info = self.workers[0].parse_init_info(body["init_info"])
        return self.on_workers("init_transfer_engine", info)

    def shutdown_weight_transfer_engine(self, _):
        return self.on_workers("shutdown")

    def start_weight_update(self, body):
        super().start_weight_update(body)
        return self.on_workers("start_weight_update")

    def update_weights(self, body):
        return self.on_workers("update_weights", body["update_info"])

    def finish_weight_update(self, body):
        self.on_workers("finish_weight_update")
        held = [worker.model.held for worker in self.workers]
        assert all(torch.equal(one[name], held[0][name]) for one in held for name in one)
        self.weights = held[0]
        return super().finish_weight_update(body)


@pytest.fixture
def servers():
    made = [NcclServer(workers=2), NcclServer()]
    yield made
    for server in made:
        server.close()


@pytest.fixture
def make_engine(tiny_policy):
    def make(*servers, **options):
        defaults = {"dtype": "float32", "timeout": 60.0, "retries": 0, "patience": 0.5}
        urls = [server.url for server in servers]
        return VLLMServerEngine(str(tiny_policy), urls, **{**defaults, **options})

    return make


def doubled(times):
    return [(name, tensor * 2**times) for name, tensor in WEIGHTS]


def holds(server, weights):
    assert server.weights.keys() == {name for name, _ in weights}
    return all(torch.equal(server.weights[name], tensor.float()) for name, tensor in weights)


def test_every_worker_of_every_server_gets_every_version_over_one_group_per_server(servers, make_engine):
    engine = make_engine(*servers)
    for times in (0, 2, 1):
        engine.sync(doubled(times))
        assert all(holds(server, doubled(times)) for server in servers)
        assert {server.version for server in servers} == {engine.version}
    assert sampled(engine) == {(60, 10), (60, 20), (60, 30)}
    assert [server.calls.count("init_weight_transfer_engine") for server in servers] == [1, 1]
    worlds = [group.engine.model_update_group.world_size for group in engine.groups.values()]
    assert sorted(worlds) == [2, 3], "no server waits for the workers of another"
    groups = [group.engine.model_update_group for group in engine.groups.values()]
    engine.close()
    assert all(group.aborted.is_set() for group in groups)


def test_a_server_that_was_started_again_joins_again(servers, make_engine):
    engine = make_engine(*servers)
    engine.sync(WEIGHTS)
    old = engine.groups[servers[0].url].engine.model_update_group
    servers[0].restart()
    engine.sync(doubled(1))
    assert old.aborted.is_set()
    assert all(holds(server, doubled(1)) for server in servers)
    assert [server.calls.count("init_weight_transfer_engine") for server in servers] == [2, 1]


def test_a_server_that_dies_in_a_broadcast_leaves_alone_and_at_once(servers, make_engine, caplog):
    engine = make_engine(*servers)
    engine.sync(WEIGHTS)
    old = engine.groups[servers[0].url].engine.model_update_group
    servers[0].fail = {"update_weights": raising(ConnectionAbortedError)}  # its workers take nothing
    began = time.monotonic()
    engine.sync(doubled(1))
    assert time.monotonic() - began < 45, "the limit of a server that says nothing"
    assert list(engine.servers) == list(engine.groups) == [servers[1].url]
    assert holds(servers[1], doubled(1))
    assert old.aborted.is_set(), "the broadcast waits for it no longer"
    assert servers[0].url in caplog.messages[-1]
    servers[0].fail = {}
    servers[0].restart()
    engine.sync(doubled(2))
    assert all(holds(server, doubled(2)) for server in servers)


def test_a_server_that_hangs_in_a_broadcast_is_left_in_time(servers, make_engine, monkeypatch):
    monkeypatch.setattr(server_calls, "CONTROL_SECONDS", 2.0)
    engine = make_engine(*servers)
    engine.sync(WEIGHTS)
    released = threading.Event()
    servers[0].fail = {"update_weights": lambda: released.wait(120)}
    engine.sync(doubled(1))
    assert list(engine.servers) == [servers[1].url]
    released.set()


@pytest.mark.parametrize("join", ["refuses", "hangs"])
def test_a_server_that_does_not_join_is_named(servers, make_engine, monkeypatch, join):
    monkeypatch.setattr(server_calls, "CONTROL_SECONDS", 2.0)
    released = threading.Event()
    refuse = raising(ConnectionAbortedError)
    servers[0].fail = {
        "init_weight_transfer_engine": refuse if join == "refuses" else lambda: released.wait(120)
    }
    with pytest.raises(EngineError, match=servers[0].url):
        make_engine(servers[0]).sync(WEIGHTS)
    released.set()


def test_an_error_of_nccl_is_the_servers_and_names_it(servers, make_engine, monkeypatch):
    engine = make_engine(*servers)
    engine.sync(WEIGHTS)
    broken = engine.groups[servers[0].url].engine.model_update_group
    plain = Communicator.broadcast

    def fail(self, tensor, src, stream=None):
        if self is broken:
            raise RuntimeError("NCCL error: unhandled system error")
        plain(self, tensor, src, stream)

    monkeypatch.setattr(Communicator, "broadcast", fail)
    engine.sync(doubled(1))
    assert list(engine.servers) == [servers[1].url]
    for worker in servers[0].workers:
        worker.shutdown()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("ThreadPoolExecutor-")], 60)
