"""Servers that come and go, are busy, die or hang while they sample."""

from __future__ import annotations

import socket
import threading
import time
from functools import partial
from itertools import cycle
from types import SimpleNamespace

import httpx
import pytest
import torch

from tagrpo.rollouts import EngineError
from tagrpo.rollouts.engines.weight_stream import receive_weights
from tagrpo.rollouts.servers import server_calls
from tagrpo.rollouts.servers import vllm_server as vllm_server_engine
from tagrpo.rollouts.servers.server_calls import listed
from tagrpo.types import Request
from tests.helpers import on_two_ranks, wait_until
from tests.rollouts.fake_server import SAMPLING, WEIGHTS, FakeServer, Refusal, raising, sampled

GENERATE = "inference/v1/generate"
EVERYTHING = {(30, 10), (30, 20), (30, 30)}


@pytest.fixture
def hanging():
    """What a route calls that says nothing until the test ends."""
    released = threading.Event()
    yield lambda: released.wait(120)
    released.set()


@pytest.fixture
def soon(monkeypatch):
    """A server that fails is noticed soon."""
    monkeypatch.setattr(vllm_server_engine, "PROBE_EVERY", 0.02)


def watchers():
    return [thread for thread in threading.enumerate() if "watch" in thread.name]


def test_a_file_lists_one_server_a_line_besides_comments(tmp_path):
    file = tmp_path / "servers.txt"
    file.write_text("# of job 7\n\n  http://node1:8000/  # the first\nhttp://node2:8000\n")
    assert listed(f"file:{file}") == ["http://node1:8000", "http://node2:8000"]
    file.write_text("# none yet\n\n")
    with pytest.raises(OSError, match="lists no server"):
        listed(f"file:{file}")


def test_a_name_stands_for_each_of_its_addresses_once(monkeypatch):
    def resolve(host, port, **_):
        assert (host, port) == ("workers", 8000)
        end4, end6 = ("10.0.0.9", 8000), ("fd00::7", 8000, 0, 0)
        return [(socket.AF_INET6, 1, 6, "", end6), (socket.AF_INET, 1, 6, "", end4)]

    monkeypatch.setattr(server_calls.socket, "getaddrinfo", resolve)
    assert listed("dns:http://workers:8000") == ["http://10.0.0.9:8000", "http://[fd00::7]:8000"]


def test_servers_that_came_get_the_weights_and_those_that_went_are_left_alone(
    server, other, make_engine, tmp_path
):
    file = tmp_path / "servers.txt"
    file.write_text(server.url)
    engine = make_engine(f"file:{file}")
    engine.sync(WEIGHTS)
    assert sampled(engine) == EVERYTHING
    assert other.calls == []
    file.write_text(f"{server.url}\n{other.url}\n")
    engine.sync(WEIGHTS)
    assert torch.equal(other.weights["a"], WEIGHTS[0][1])
    assert list(engine.servers) == [server.url, other.url]
    file.write_text(other.url)
    server.calls.clear()
    engine.sync(WEIGHTS)
    assert sampled(engine) == EVERYTHING
    assert server.calls == []


def test_all_addresses_of_a_name_are_servers_and_new_ones_are_seen_at_the_next_sync(make_engine, monkeypatch):
    first = FakeServer("127.0.0.2")
    port = first.http.server_port
    second = FakeServer("127.0.0.3", port)
    addresses = ["127.0.0.2"]
    plain = socket.getaddrinfo

    def resolve(host, *arguments, **options):
        hosts = addresses if host == "workers" else [host]
        return [found for one in hosts for found in plain(one, *arguments, **options)]

    monkeypatch.setattr(server_calls.socket, "getaddrinfo", resolve)
    engine = make_engine(f"dns:http://workers:{port}")
    engine.sync(WEIGHTS)
    assert list(engine.servers) == [first.url]
    addresses.append("127.0.0.3")
    engine.sync(WEIGHTS)
    assert list(engine.servers) == [first.url, second.url]
    assert first.version == second.version == engine.version
    for fake in (first, second):
        fake.close()


def test_a_file_that_is_not_there_is_waited_for_and_read_again(
    server, make_engine, tmp_path, monkeypatch, caplog
):
    file = tmp_path / "servers.txt"
    engine = make_engine(f"file:{file}", patience=600.0)
    contents = iter(["# soon", "http://node:80o0", server.url])
    monkeypatch.setattr(vllm_server_engine.time, "sleep", lambda _: file.write_text(next(contents)))
    engine.sync(WEIGHTS)
    assert sampled(engine) == EVERYTHING
    missing, empty, half = caplog.messages
    assert f"file:{file}: [Errno 2] No such file" in missing
    assert f"file:{file}: it lists no server" in empty
    assert "http://node:80o0: InvalidURL" in half


def test_a_file_that_stays_empty_is_named_in_the_error_and_costs_nothing_beside_other_servers(
    server, make_engine, tmp_path
):
    entry = f"file:{tmp_path / 'servers.txt'}"
    with pytest.raises(EngineError, match=rf"{entry}.*rollout\.engine\.url"):
        make_engine(entry).sync(WEIGHTS)
    engine = make_engine(entry, server.url)
    engine.sync(WEIGHTS)
    assert sampled(engine) == EVERYTHING


@pytest.mark.parametrize(("content", "said"), [
    (b"<html>", r"Expected the reply of http://gateway/tagrpo_flags to be JSON.*<html>"),
    (b"{}", r"lacking.*rollout.engine.url"),
    (b"[]", r"ForeignDataError: .*/tagrpo_flags"),
])  # fmt: skip
def test_another_program_at_an_address_is_named_with_what_it_answered(
    content, said, make_engine, monkeypatch
):
    answer = httpx.MockTransport(lambda _: httpx.Response(200, stream=httpx.ByteStream(content)))
    monkeypatch.setattr(server_calls.httpx, "Client", partial(httpx.Client, transport=answer))
    with pytest.raises(EngineError, match=f"http://gateway.*{said}"):
        make_engine("http://gateway").sync(WEIGHTS)


def test_a_port_that_is_no_number_is_named(make_engine):
    with pytest.raises(EngineError, match=r"dns:http://workers:80o0"):
        make_engine("dns:http://workers:80o0").sync(WEIGHTS)


def test_all_ranks_learn_from_the_first_which_servers_there_are(
    server, other, make_engine, tmp_path, monkeypatch
):
    file = tmp_path / "servers.txt"
    file.write_text(f"{server.url}\n{other.url}")
    engines, found = {}, {}

    def run(rank):
        # Of the second rank the setting is wrong: it has to take the first one's word.
        engines[rank] = make_engine(f"file:{file}" if rank == 0 else "http://127.0.0.1:9")
        engines[rank].sync(WEIGHTS)
        found[rank] = list(engines[rank].servers), max(engines[rank].contexts.values())
        request = Request([torch.tensor([10 + rank])], [1], SAMPLING, 0)
        found[rank] += (engines[rank].generate(request)[0][0].token_ids[:-1].tolist(),)

    on_two_ranks(monkeypatch, run, vllm_server_engine)
    assert found[0] == ([server.url, other.url], 100, [30, 10])
    assert found[1] == ([other.url, server.url], 100, [30, 11]), (
        "a single prompt of each rank meets another server"
    )
    assert server.calls.count(GENERATE) == other.calls.count(GENERATE) == 1


def test_requests_go_to_the_server_with_the_fewest_under_way(server, other, make_engine):
    engine = make_engine(server.url, other.url, concurrency=2, timeout=120.0)
    engine.sync(WEIGHTS)
    others_have_been_answered = threading.Event()

    def last():
        if other.calls.count(GENERATE) == 5:
            others_have_been_answered.set()

    server.fail = {GENERATE: lambda: others_have_been_answered.wait(60)}
    other.fail = {GENERATE: last}
    engine.generate(Request([torch.tensor([10 + row]) for row in range(6)], [1] * 6, SAMPLING, 0))
    assert server.calls.count(GENERATE) == 1, "the busy one has been asked no more"
    assert engine.servers[server.url].under_way == engine.servers[other.url].under_way == 0


def test_a_broken_request_moves_while_others_are_still_under_way(server, other, make_engine):
    engine = make_engine(server.url, other.url, timeout=120.0, retries=0)
    engine.sync(WEIGHTS)
    moved, broken, waited, plain = threading.Event(), [], [], server.inference_v1_generate

    def generate(body):
        if not broken:
            broken.append(body)
            raise ConnectionAbortedError
        if body == broken[0]:
            moved.set()
        else:
            waited.append(moved.wait(60))
        return plain(body)

    server.inference_v1_generate = generate
    other.inference_v1_generate = generate
    results = engine.generate(Request([torch.tensor([10 + row]) for row in range(6)], [1] * 6, SAMPLING, 0))
    assert [int(samples[0].token_ids[1]) for samples in results] == list(range(10, 16))
    assert waited == [True] * 5


def test_a_server_that_hangs_loses_its_requests_to_another(
    server, other, make_engine, hanging, soon, monkeypatch, caplog
):
    engine = make_engine(server.url, other.url, timeout=120.0, retries=0)
    engine.sync(WEIGHTS)
    monkeypatch.setattr(server_calls, "PROBE_SECONDS", 3.0)
    server.fail = dict.fromkeys((GENERATE, "weight_info"), hanging)
    assert sampled(engine) == EVERYTHING
    assert other.calls.count(GENERATE) == 3
    (message,) = caplog.messages
    assert f"Going on without {server.url} until the next sync: ReadTimeout" in message
    server.calls.clear()
    assert sampled(engine) == EVERYTHING
    assert GENERATE not in server.calls, "it is not asked before the next sync"
    assert [left.under_way for left in engine.servers.values()] == [0, 0]
    server.fail, other.fail = {}, {GENERATE: raising(ConnectionAbortedError)}
    engine.sync(WEIGHTS)
    assert sampled(engine) == EVERYTHING, "the sync has brought it back"


HANGS = [
    "tagrpo_flags",
    "update_weight_version",
    "pause",
    "init_weight_transfer_engine",
    "start_weight_update",
]
HANGS += ["update_weights", "reset_prefix_cache", "finish_weight_update", "resume"]


@pytest.mark.parametrize("route", [*HANGS, "within the stream"])
def test_a_server_that_hangs_while_it_takes_weights_is_left_for_another(
    server, other, make_engine, hanging, monkeypatch, route
):
    monkeypatch.setattr(server_calls, "CONTROL_SECONDS", 2.0)
    monkeypatch.setattr(server_calls, "PROBE_SECONDS", 2.0)
    engine = make_engine(server.url, other.url, timeout=120.0)

    def begin(body):
        next(receive_weights(**body["update_info"]))
        hanging()

    if route == "within the stream":
        server.update_weights = begin
    else:
        server.fail = {route: hanging}
    began = time.monotonic()
    engine.sync(WEIGHTS)
    assert time.monotonic() - began < 600, "it waits for ever"
    assert list(engine.servers) == [other.url]
    assert sampled(engine) == EVERYTHING
    server.fail, server.update_weights = {}, partial(FakeServer.update_weights, server)
    server.restart()
    engine.sync(WEIGHTS)
    assert list(engine.servers) == [server.url, other.url], "it is used again when it is back"


@pytest.mark.parametrize("all_of_it", [False, True])
def test_where_the_only_server_hangs_while_it_takes_weights_the_error_names_it_and_the_settings(
    server, make_engine, hanging, monkeypatch, caplog, all_of_it
):
    monkeypatch.setattr(server_calls, "CONTROL_SECONDS", 1.0)
    monkeypatch.setattr(server_calls, "PROBE_SECONDS", 3.0)
    engine = make_engine(server.url, timeout=1800.0, patience=2.0, retries=1)

    def hang():
        server.fail |= dict.fromkeys(["weight_info"] if all_of_it else [], hanging)
        hanging()

    server.fail = {"update_weights": hang}
    stalled = f"{server.url}: it took no weights for 1 s: "
    said = f"{server.url}: ReadTimeout" if all_of_it else stalled
    with pytest.raises(
        EngineError, match=rf"\(rollout.engine.retries\).*\(rollout.engine.patience\).*{said}"
    ):
        engine.sync(WEIGHTS)
    assert stalled in caplog.messages[0]


def test_a_request_may_take_long_while_its_server_answers_probes(server, other, make_engine, soon):
    engine = make_engine(server.url, other.url, timeout=120.0)
    engine.sync(WEIGHTS)
    server.calls.clear()
    server.fail = {GENERATE: lambda: wait_until(lambda: server.calls.count("weight_info") > 20)}
    assert sampled(engine) == EVERYTHING
    assert server.calls.count(GENERATE) + other.calls.count(GENERATE) == 3
    wait_until(lambda: not watchers())


def test_closing_ends_what_is_under_way_and_who_watches_it(server, make_engine, hanging, soon):
    engine = make_engine(server.url, timeout=1800.0)
    engine.sync(WEIGHTS)
    server.fail = {GENERATE: hanging}
    engine.generate_async(Request([torch.tensor([11])], [1], SAMPLING, 0))
    wait_until(lambda: GENERATE in server.calls)
    assert watchers()
    engine.close()
    wait_until(lambda: not watchers(), 20)


def test_a_request_that_moves_has_what_is_left_of_its_time(server, other, make_engine, monkeypatch):
    engine = make_engine(server.url, other.url, timeout=120.0, retries=0)
    engine.sync(WEIGHTS)
    limits, post = [], server_calls.VLLMServer.post

    def noted(self, path, body=None, timeout=None, **options):
        limits.append(timeout)
        return post(self, path, body, timeout, **options)

    def break_late():
        time.sleep(0.5)
        raise ConnectionAbortedError

    monkeypatch.setattr(server_calls.VLLMServer, "post", noted)
    server.fail = {GENERATE: break_late}
    engine.generate(Request([torch.tensor([11])], [1], SAMPLING, 0))
    assert 119 < limits[0] <= 120
    assert limits[1] <= limits[0] - 0.5


@pytest.mark.parametrize("both", [False, True])
def test_a_server_that_hangs_leaves_another_its_time_even_without_retries(
    server, other, make_engine, monkeypatch, both
):
    engine = make_engine(server.url, other.url, timeout=120.0, retries=0)
    engine.sync(WEIGHTS)
    clock, limits, post = [0.0], {server.url: [], other.url: []}, server_calls.VLLMServer.post

    def posted(self, path, body=None, timeout=None, *more, **options):
        if path == vllm_server_engine.ROUTE:
            limits[self.url].append(timeout)
            if self.url == server.url or both or timeout < 1.0:
                clock[0] += timeout
                raise httpx.ReadTimeout("it hangs")
        return post(self, path, body, timeout, *more, **options)

    monkeypatch.setattr(server_calls.VLLMServer, "post", posted)
    monkeypatch.setattr(
        vllm_server_engine, "time", SimpleNamespace(**{**vars(time), "monotonic": lambda: clock[0]})
    )
    request = Request([torch.tensor([11])], [1], SAMPLING, 0)
    if both:
        with pytest.raises(EngineError, match="failed 2 times.*it hangs"):
            engine.generate(request)
        assert len(limits[server.url]) == len(limits[other.url]) == 2, "it is tried once more, not for ever"
    else:
        ((completion,),) = engine.generate(request)
        assert int(completion.token_ids[1]) == 11
        assert limits == {server.url: [120.0], other.url: [0.001, 120.0]}


def test_one_probe_that_fails_is_forgiven(server, make_engine, soon):
    engine = make_engine(server.url, timeout=120.0, retries=0)
    engine.sync(WEIGHTS)
    server.calls.clear()
    every_second = cycle([True, False])

    def probe():
        if next(every_second):
            raise ConnectionAbortedError

    server.fail = {
        "weight_info": probe,
        GENERATE: lambda: wait_until(lambda: server.calls.count("weight_info") > 20),
    }
    assert sampled(engine) == EVERYTHING


def test_a_server_that_lost_the_weights_is_not_waited_for(server, other, make_engine, hanging, soon):
    engine = make_engine(server.url, other.url, timeout=120.0, retries=0)
    engine.sync(WEIGHTS)
    server.restart()
    server.fail = {GENERATE: hanging}
    assert sampled(engine) == EVERYTHING
    assert "holds the weights 'default'" in engine.servers[server.url].state


def test_when_no_server_is_left_the_error_says_why_of_each(server, other, make_engine, hanging, soon):
    engine = make_engine(server.url, other.url, timeout=120.0, retries=0)
    engine.sync(WEIGHTS)
    server.fail = {GENERATE: hanging, "weight_info": raising(Refusal(500))}
    other.fail = {GENERATE: raising(ConnectionAbortedError)}
    for _ in range(2):  # the second time the first server is not asked
        with pytest.raises(EngineError, match="3 requests failed 1 times") as error:
            sampled(engine)
        assert f"{server.url}: HTTPStatusError: Server error '500" in str(error.value)
        assert f"{other.url}: RemoteProtocolError" in str(error.value)
