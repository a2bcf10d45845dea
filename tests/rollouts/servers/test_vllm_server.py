"""Servers that die, hang, refuse or forget their weights. Most of them are played by a few lines of HTTP."""

from __future__ import annotations

import hashlib
import re
import signal
import socket
import threading
import time

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from tagrpo.rollouts import EngineError, SamplingConfig
from tagrpo.rollouts.engines import weight_stream
from tagrpo.rollouts.engines.weight_stream import address_towards, bytes_of, offered, receive_weights
from tagrpo.rollouts.servers import server_calls
from tagrpo.rollouts.servers import vllm_server as vllm_server_engine
from tagrpo.rollouts.servers.access import shared_token
from tagrpo.rollouts.servers.vllm_server import VLLMServerEngine
from tagrpo.rollouts.transfer import sender
from tagrpo.rollouts.transfer.flags import DEV_MODE, GUARD, server_flags
from tagrpo.runs import preemption
from tagrpo.types import Request
from tests.helpers import wait_until
from tests.rollouts.fake_server import PROMPTS, SAMPLING, WEIGHTS, Refusal, raising, sampled


def test_weights_arrive_as_they_are_and_the_server_is_paused_meanwhile(server, make_engine):
    engine = make_engine(server.url)
    engine.sync(WEIGHTS)
    assert server.weights.keys() == {"a", "b"}
    assert torch.equal(server.weights["a"], WEIGHTS[0][1])
    assert torch.equal(server.weights["b"], WEIGHTS[1][1].float())
    order = ["tagrpo_flags", "pause", "init_weight_transfer_engine", "start_weight_update", "update_weights"]
    order += ["reset_prefix_cache", "finish_weight_update", "resume"]
    assert [call for call in server.calls if call in order] == order
    assert sampled(engine) == {(30, 10), (30, 20), (30, 30)}


def test_a_restarted_server_gets_the_weights_again_before_anything_is_taken_from_it(server, make_engine):
    engine = make_engine(server.url)
    engine.sync(WEIGHTS)
    assert sampled(engine) == {(30, 10), (30, 20), (30, 30)}
    server.restart()
    delivered = []
    results = engine.generate(Request(PROMPTS, [3, 1, 9], SAMPLING, 0), lambda p, _: delivered.append(p))
    assert {int(sample.token_ids[0]) for samples in results for sample in samples} == {30}
    assert sorted(delivered) == [0, 1, 2], "the responses of nobody's weights are delivered to nobody"


def test_a_response_that_two_versions_of_the_weights_have_sampled_is_sampled_again(server, make_engine):
    engine = make_engine(server.url)
    engine.sync(WEIGHTS)
    plain, tainted = server.inference_v1_generate, [True]

    def generate(body):
        reply = plain(body)
        if tainted:
            tainted.pop()
            reply["choices"][0]["weight_versions"].insert(0, {"version": "older", "start": 0, "end": 1})
        return reply

    server.inference_v1_generate = generate
    assert sampled(engine) == {(30, 10), (30, 20), (30, 30)}
    # A request for each prompt, and one of them again.
    assert server.calls.count("inference/v1/generate") == 3 + 1


def test_what_fails_once_is_tried_again(server, make_engine):
    engine = make_engine(server.url, patience=600.0)
    server.fail = {
        "update_weights": raising(Refusal(500), 1),
        "inference/v1/generate": raising(ConnectionAbortedError, 2),
    }
    engine.sync(WEIGHTS)
    assert sampled(engine) == {(30, 10), (30, 20), (30, 30)}


def test_an_interrupted_transfer_leaves_no_server_that_passes_for_current(server, make_engine):
    engine = make_engine(server.url, retries=0)
    engine.sync(WEIGHTS)
    server.fail = {"reset_prefix_cache": raising(Refusal(500))}
    with pytest.raises(EngineError, match="500"):
        engine.sync(WEIGHTS)
    assert server.version == "unfinished"


def test_what_fails_beside_an_update_is_tried_again_by_who_waits_and_with_the_weights_from_before(
    server, make_engine
):
    engine = make_engine(server.url, retries=1)
    engine.sync(WEIGHTS)
    asked = threading.Event()

    def restart():
        if not asked.is_set():
            server.restart()  # the weights that it had are lost, and so is what it has sampled by none
            asked.set()

    server.fail = {"inference/v1/generate": restart}
    before, delivered = server.calls.count("update_weights"), []
    finish = engine.generate_async(Request(PROMPTS, [3, 1, 9], SAMPLING, 0), lambda p, _: delivered.append(p))
    assert asked.wait(20), "sampling has begun"
    time.sleep(0.2)
    assert server.calls.count("update_weights") == before, "weights are not sent by the thread"
    results = finish()
    assert server.calls.count("update_weights") == before + 1
    assert [len(samples) for samples in results] == [3, 1, 9]
    assert {tuple(s.token_ids[:-1].tolist()) for samples in results for s in samples} == {
        (30, 10),
        (30, 20),
        (30, 30),
    }
    assert sorted(delivered) == [0, 1, 2]


def test_a_server_that_dies_beside_an_update_ends_in_an_error_after_bounded_retries(server, make_engine):
    engine = make_engine(server.url, retries=1)
    engine.sync(WEIGHTS)
    server.fail = {"inference/v1/generate": raising(ConnectionAbortedError)}
    finish = engine.generate_async(Request(PROMPTS, [3, 1, 9], SAMPLING, 0))
    with pytest.raises(EngineError, match="3 requests failed 2 times"):
        finish()
    assert server.calls.count("inference/v1/generate") == 2 * 3


def test_another_server_takes_over_and_the_first_one_is_used_again_when_it_is_back(
    server, other, make_engine
):
    engine = make_engine(server.url, other.url)
    engine.sync(WEIGHTS)
    assert list(engine.servers) == [server.url, other.url]
    server.fail = {
        route: raising(ConnectionAbortedError) for route in ("inference/v1/generate", "weight_info")
    }
    other.calls.clear()
    assert sampled(engine) == {(30, 10), (30, 20), (30, 30)}
    assert other.calls == ["inference/v1/generate"] * 3, (
        "the requests have moved, and nobody was prepared anew"
    )
    engine.sync([(name, tensor + 2) for name, tensor in WEIGHTS])
    assert list(engine.servers) == [other.url]
    server.fail = {}
    server.restart()
    engine.sync([(name, tensor + 1) for name, tensor in WEIGHTS])
    assert list(engine.servers) == [server.url, other.url]
    server.calls.clear()
    assert sampled(engine) == {(38, 10), (38, 20), (38, 30)}
    assert "inference/v1/generate" in server.calls


def test_a_server_that_nobody_has_started_is_waited_for_and_then_named(make_engine):
    engine = make_engine("http://127.0.0.1:9")
    start = time.monotonic()
    with pytest.raises(
        EngineError, match=r"http://127\.0\.0\.1:9: ConnectError.*tagrpo\.rollouts\.transfer\.flags"
    ):
        engine.sync(WEIGHTS)
    assert time.monotonic() - start > 0.5, "patience"


def test_who_waits_for_a_server_says_so_and_ends_when_asked_to(make_engine, monkeypatch, caplog):
    engine = make_engine("http://127.0.0.1:9", patience=600.0)
    received: set[int] = set()
    monkeypatch.setattr(preemption, "RECEIVED", received)
    naps = []

    def nap(seconds):
        naps.append(seconds)
        if len(naps) == 3:
            received.add(signal.SIGTERM)

    monkeypatch.setattr(vllm_server_engine.time, "sleep", nap)
    with pytest.raises(SystemExit) as end:
        engine.sync(WEIGHTS)
    assert end.value.code == 0
    (message,) = caplog.messages  # nothing has changed since
    assert "600 s (rollout.engine.patience) for a vLLM server: http://127.0.0.1:9: ConnectError" in message


def test_a_server_that_hangs_ends_in_an_error_after_bounded_retries(server, make_engine):
    engine = make_engine(server.url, timeout=2.0, retries=1)
    engine.sync(WEIGHTS)
    server.fail = {"inference/v1/generate": lambda: time.sleep(4.0)}
    with pytest.raises(EngineError, match=r"3 requests .*ReadTimeout"):
        sampled(engine)
    assert server.calls.count("inference/v1/generate") == 2 * 3


def test_a_server_without_the_guard_is_named_with_what_to_do(server, make_engine):
    server.fail = {"tagrpo_flags": raising(Refusal(404))}
    with pytest.raises(
        EngineError, match=rf"answered 404.*{GUARD}.*python -m tagrpo\.rollouts\.transfer\.flags"
    ):
        make_engine(server.url).sync(WEIGHTS)
    assert "update_weights" not in server.calls


@pytest.mark.parametrize("flag", [DEV_MODE, *server_flags(cpu=True)[1:]])
def test_a_server_that_lacks_a_flag_is_refused_by_its_name_and_another_is_used(
    server, other, make_engine, flag, caplog
):
    server.lacking = [flag]
    with pytest.raises(EngineError, match=re.escape(f"lacks {flag}")):
        make_engine(server.url, retries=0).sync(WEIGHTS)
    assert server.version == "default"
    engine = make_engine(server.url, other.url)
    engine.sync(WEIGHTS)
    assert list(engine.servers) == [other.url]
    assert flag in caplog.messages[-1]


def test_a_server_whose_backend_the_trainer_lacks_is_refused_by_its_name(server, make_engine, monkeypatch):
    monkeypatch.setattr(
        server, "tagrpo_flags", lambda _: {"lacking": [], "backend": "sharded_rdt", "workers": 1}
    )
    with pytest.raises(EngineError, match=r"--weight-transfer-config.*'sharded_rdt'"):
        make_engine(server.url, retries=0).sync(WEIGHTS)


def test_an_update_that_a_killed_trainer_has_left_is_ended_first(server, make_engine):
    server.updating = True
    engine = make_engine(server.url, retries=0)
    engine.sync(WEIGHTS)
    assert sampled(engine) == {(30, 10), (30, 20), (30, 30)}
    assert server.calls.count("start_weight_update") == server.calls.count("finish_weight_update") == 2


def test_a_server_that_failed_to_resume_resumes_before_it_is_used(server, make_engine):
    server.fail = {"resume": raising(Refusal(500), 1)}
    engine = make_engine(server.url, patience=600.0)
    engine.sync(WEIGHTS)
    assert server.calls.count("resume") == 2
    assert server.calls.count("update_weights") == 1, "it has the weights"


def test_check_sums_are_compared_if_asked_for_and_a_server_with_other_weights_is_left_out(
    server, other, make_engine, caplog
):
    def checksums_of(fake):
        sums = {
            f"dp0:pp0:pcp0:tp0:{name}": hashlib.sha256(bytes_of(t)).hexdigest()
            for name, t in fake.weights.items()
        }
        return {"checksums": sums}

    for fake in (server, other):
        fake.weight_checker = lambda _, fake=fake: checksums_of(fake)
    engine = make_engine(server.url, other.url)
    engine.sync(WEIGHTS)
    assert "weight_checker" not in server.calls
    engine = make_engine(server.url, other.url, check_weights=True)
    engine.sync(WEIGHTS)
    assert list(engine.servers) == [server.url, other.url]
    plain = server.finish_weight_update

    def lose_a_bit(body):
        server.weights["a"][1, 2] += 1e-6
        return plain(body)

    server.finish_weight_update = lose_a_bit
    engine.sync(WEIGHTS)
    assert list(engine.servers) == [other.url]
    assert server.version == "unfinished"
    assert "rollout.engine.check_weights" in caplog.messages[-1]
    assert "['a']" in caplog.messages[-1]


@pytest.mark.parametrize(
    "options", [{"url": "localhost:8000"}, {"url": []}, {"retries": -1}, {"timeout": 0.0}]
)
def test_options_that_make_no_sense_are_refused(tiny_policy, options):
    with pytest.raises(ValueError, match=r"rollout\.engine"):
        VLLMServerEngine(str(tiny_policy), **{"url": "http://localhost:8000", **options})


def has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_stream_answers_only_who_knows_the_token_and_only_until_the_update_ends(host):
    if host == "::1" and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    assert address_towards(host) == host
    with offered(WEIGHTS, 5.0, host, pytest.fail) as where:
        with pytest.raises(OSError, match="answered 401"):
            list(receive_weights(**{**where, "token": "x" * len(where["token"])}))
        received = dict(receive_weights(**where))
    assert all(
        torch.equal(received[name], tensor) and received[name].dtype == tensor.dtype
        for name, tensor in WEIGHTS
    )
    with pytest.raises(ConnectionRefusedError):
        list(receive_weights(**where))


def test_silent_strangers_hold_up_neither_the_receivers_nor_the_end(monkeypatch):
    monkeypatch.setattr(weight_stream._Handler, "timeout", 3600.0)
    strangers = []
    with offered(WEIGHTS, 20.0, "127.0.0.1", pytest.fail) as where:
        strangers += [socket.create_connection(("127.0.0.1", where["port"])) for _ in range(5)]
        for _ in range(2):
            assert dict(receive_weights(**where)).keys() == dict(WEIGHTS).keys()
    for stranger in strangers:
        stranger.close()


def test_who_says_nothing_for_the_time_of_a_handshake_is_dropped(monkeypatch):
    monkeypatch.setattr(weight_stream._Handler, "timeout", 0.05)
    with (
        offered(WEIGHTS, 20.0, "127.0.0.1", pytest.fail) as where,
        socket.create_connection(("127.0.0.1", where["port"]), timeout=60) as stranger,
    ):
        stranger.sendall(b"half")
        assert stranger.recv(1) == b"", "the sender hangs up"


def test_a_stream_that_ends_too_early_is_an_error(monkeypatch):
    def cut(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'[["a", "float32", [2]]]\n' + bytes(7))

    monkeypatch.setattr(weight_stream._Handler, "do_GET", cut)
    with (
        offered(WEIGHTS, 20.0, "127.0.0.1", pytest.fail) as where,
        pytest.raises(ConnectionError, match="1 more bytes of a"),
    ):
        list(receive_weights(**where))


def test_a_receiver_may_take_long_while_it_takes_anything_and_is_noticed_when_it_stops():
    stalls, end = [], time.monotonic() + 5.0
    with (
        offered([("a", torch.zeros(1 << 26))], 2.5, "127.0.0.1", lambda: stalls.append(1)) as where,
        socket.create_connection(("127.0.0.1", where["port"]), timeout=60) as receiver,
    ):
        receiver.sendall(f"GET / HTTP/1.0\r\nAuthorization: Bearer {where['token']}\r\n\r\n".encode())
        while time.monotonic() < end:
            assert receiver.recv(1 << 18)
            time.sleep(0.01)
        assert not stalls, "twice the limit, and a tensor that has not arrived yet"
        wait_until(lambda: stalls)


def test_a_transfer_listens_only_at_the_address_towards_its_server(server, make_engine, monkeypatch):
    addresses = []

    def watched(weights, timeout, host, *callbacks):
        addresses.append(host)
        return offered(weights, timeout, host, *callbacks)

    monkeypatch.setattr(sender, "offered", watched)
    make_engine(server.url).sync(WEIGHTS)
    assert addresses == ["127.0.0.1"]


def test_a_trainer_with_another_token_is_told_so(server, make_engine, monkeypatch):
    engine = make_engine(server.url, retries=0)
    monkeypatch.setenv("TAGRPO_TOKEN", "the token of somebody else")
    with pytest.raises(EngineError, match=r"answered 401.*TAGRPO_TOKEN.*same value"):
        engine.sync(WEIGHTS)


@pytest.mark.slow
@pytest.mark.vllm
def test_a_killed_vllm_server_is_waited_for_and_samples_the_same_from_the_same_weights(
    tiny_policy, vllm_servers, vllm_server
):
    engine = VLLMServerEngine(str(tiny_policy), vllm_server, dtype="float32", timeout=600, patience=600)
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    engine.sync(model.named_parameters())
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(3, 60, (5,), generator=generator) for _ in range(60)]
    sampling = SamplingConfig(max_new_tokens=100)

    def tokens(deliver=lambda *_: None):
        results = engine.generate(Request(prompts, [8] * 60, sampling, 3), deliver)
        return [[sample.token_ids.tolist() for sample in samples] for samples in results]

    expected = tokens()
    killed = []

    def kill(*_):
        if not killed:
            killed.append(vllm_server)
            vllm_servers.kill(vllm_server)
            vllm_servers.start(vllm_server)

    assert tokens(kill) == expected
    assert killed


class Breaking:
    """A file that breaks at a write; the first two are headers and the description of the weights."""

    def __init__(self, file, at):
        self.file, self.left = file, at

    def write(self, content):
        self.left -= 1
        if not self.left:
            raise ConnectionAbortedError
        return self.file.write(content)

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.mark.slow
@pytest.mark.vllm
def test_a_server_whose_stream_of_weights_breaks_off_takes_the_next_one_whole(
    tiny_policy, vllm_server, monkeypatch
):
    engine = VLLMServerEngine(
        str(tiny_policy), vllm_server, dtype="float32", timeout=600, patience=600, retries=1
    )
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    names = [name.split(".")[-2] for name, _ in model.named_parameters()]
    request, breaks = Request(PROMPTS, [4, 4, 4], SamplingConfig(max_new_tokens=20), 0), []
    plain = weight_stream._Handler.do_GET

    def sampled_tokens():
        return [[sample.token_ids.tolist() for sample in samples] for samples in engine.generate(request)]

    def break_once(self):
        if breaks:
            self.wfile = Breaking(self.wfile, breaks.pop())
        plain(self)

    engine.sync(model.named_parameters())
    expected = sampled_tokens()
    monkeypatch.setattr(weight_stream._Handler, "do_GET", break_once)
    for next_one in ("k_proj", "v_proj", "up_proj", "norm"):  # within layers that vLLM fuses, and in the end
        engine.sync((name, torch.randn_like(parameter)) for name, parameter in model.named_parameters())
        assert sampled_tokens() != expected
        breaks.append(3 + names.index(next_one))
        engine.sync(model.named_parameters())
        assert not breaks
        assert sampled_tokens() == expected, next_one


@pytest.mark.slow
@pytest.mark.vllm
def test_a_real_server_answers_nobody_without_the_token_on_any_of_its_routes(tiny_policy, vllm_server):
    VLLMServerEngine(str(tiny_policy), vllm_server, timeout=600, patience=600)._prepared()
    allowed = {"Authorization": f"Bearer {shared_token()}"}
    routes = httpx.get(f"{vllm_server}/openapi.json", headers=allowed, timeout=300).json()["paths"]
    assert {"/update_weights", "/update_weight_version", "/inference/v1/generate", "/health"} <= routes.keys()
    others = {
        "/openapi.json": {"get": {}},
        "/docs": {"get": {}},
        "/metrics": {"get": {}},
        "/nowhere": {"get": {}},
    }
    for route, methods in {**routes, **others}.items():
        for method in methods:
            for headers in ({}, {"Authorization": "Bearer of bad news"}):
                answer = httpx.request(method, vllm_server + route, headers=headers, timeout=300)
                assert answer.status_code == 401, (method, route)


@pytest.mark.slow
@pytest.mark.vllm
def test_one_of_two_real_servers_is_stopped_and_then_killed_while_they_sample(
    tiny_policy, vllm_servers, vllm_server, tmp_path, monkeypatch
):
    monkeypatch.setattr(vllm_server_engine, "PROBE_EVERY", 0.5)
    file = tmp_path / "servers.txt"
    second = vllm_servers.start()
    file.write_text(f"{vllm_server}\n{second}\n")
    engine = VLLMServerEngine(str(tiny_policy), f"file:{file}", dtype="float32", timeout=1800, patience=600)
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(3, 60, (5,), generator=generator) for _ in range(60)]

    def with_two_servers():
        engine.sync(model.named_parameters())
        return set(engine.servers) == {vllm_server, second}

    def tokens(act=lambda: None):
        done = []
        results = engine.generate(
            Request(prompts, [8] * 60, SamplingConfig(max_new_tokens=100), 3),
            lambda *_: done or done.append(act()),  # once, while most of the responses are lacking
        )
        assert done
        return [[sample.token_ids.tolist() for sample in samples] for samples in results]

    wait_until(with_two_servers)
    expected = tokens()
    assert tokens(lambda: vllm_servers.signal(second, signal.SIGSTOP)) == expected
    assert "ReadTimeout" in engine.servers[second].state
    vllm_servers.signal(second, signal.SIGCONT)
    wait_until(with_two_servers)
    with monkeypatch.context() as patch:
        plain = server_calls.VLLMServer.post

        def stop_and_post(server, path, *arguments):
            if server.url == second and path == "/update_weights":
                vllm_servers.signal(second, signal.SIGSTOP)
            return plain(server, path, *arguments)

        patch.setattr(server_calls.VLLMServer, "post", stop_and_post)
        began = time.monotonic()
        engine.sync((name, parameter + 1) for name, parameter in model.named_parameters())
        assert time.monotonic() - began < 600, "left while it takes weights, not after the timeout"
    assert list(engine.servers) == [vllm_server]
    vllm_servers.signal(second, signal.SIGCONT)
    wait_until(with_two_servers)
    assert tokens(lambda: vllm_servers.kill(second)) == expected
    engine.sync(model.named_parameters())
    assert list(engine.servers) == [vllm_server]
    assert tokens() == expected, "with the one that is left"
