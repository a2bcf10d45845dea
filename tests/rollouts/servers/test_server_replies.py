"""Servers that break their contract, beside one that keeps it; and the readers of replies by themselves."""

from __future__ import annotations

import copy
import gzip
import json
import math
import random
import socket
import threading
import time

import pytest
import torch

from tagrpo.foreign import ForeignDataError
from tagrpo.rollouts import EngineError, SamplingConfig
from tagrpo.rollouts.servers import server_calls
from tagrpo.rollouts.servers.access import shared_token
from tagrpo.rollouts.servers.server_replies import Asked, read_generated
from tagrpo.types import Request
from tests.rollouts.fake_server import PROMPTS, SAMPLING, WEIGHTS, sampled

GENERATE = "inference/v1/generate"
EVERYTHING = {(30, 10), (30, 20), (30, 30)}
STOP = 2
ASKED = Asked(num_samples=3, max_new_tokens=4, vocabulary=60, stop_ids=[STOP], version="v", random=True)
DELETED = object()
HUGE = 10**400


def good(count=3, version="v"):
    """A reply to `ASKED`."""
    ids = [30, 10, STOP]
    logprobs = zip(ids, (-0.5, -0.25, 0.0), strict=True)
    choice = {
        "token_ids": ids,
        "logprobs": {"content": [{"token_id": token, "logprob": value} for token, value in logprobs]},
        "finish_reason": "stop",
        "weight_versions": [{"version": version, "start": 0, "end": 3}],
    }
    return {"choices": [{**copy.deepcopy(choice), "index": index} for index in range(count)]}


def at(*path, value):
    """A change of the last choice of a reply."""

    def change(reply):
        place = reply["choices"][-1]
        for key in path[:-1]:
            place = place[key]
        if value is DELETED:
            del place[path[-1]]
        else:
            place[path[-1]] = value
        return reply

    return change


def of_choices(change):
    return lambda reply: {**reply, "choices": change(reply["choices"])}


FIELDS = [
    ("index",), ("token_ids",), ("logprobs",), ("finish_reason",), ("weight_versions",), ("logprobs", "content"),
    ("logprobs", "content", 0, "logprob"), ("weight_versions", 0, "version"), ("weight_versions", 0, "start"),
    ("weight_versions", 0, "end"),
]  # fmt: skip
WRONG = [DELETED, None, True, "7", 1.5, [], {}, [None], [[1]], {"a": []}, -1, HUGE]
BREACHES = {
    f"{'.'.join(map(str, path))} = {'deleted' if value is DELETED else repr(value)[:8]}": at(
        *path, value=value
    )
    for path in FIELDS
    for value in WRONG
    if (path[-1], value) not in [("logprob", -1), ("start", 0)]
}
BREACHES |= {
    "no choices": of_choices(lambda _: []),
    "choices are null": of_choices(lambda _: None),
    "choices are a number": of_choices(lambda _: 3),
    "choices are nested": of_choices(lambda choices: [choices]),
    "one choice too few": of_choices(lambda choices: choices[:-1]),
    "one choice too many": of_choices(lambda choices: [*choices, {**choices[-1], "index": len(choices)}]),
    "a choice twice": of_choices(
        lambda choices: [*choices[:-1], choices[0]] if len(choices) > 1 else choices * 2
    ),
    "hundreds of choices": of_choices(lambda choices: choices * 200),
    "a list": lambda reply: [reply],
    "null": lambda _: None,
    "an error of status 200": lambda _: {"error": "overloaded"},
    "a token outside the vocabulary": at("token_ids", value=[30, 60_000, STOP]),
    "a negative token": at("token_ids", value=[30, -1, STOP]),
    "a token that is a float": at("token_ids", value=[30, 10.0, STOP]),
    "a token that is a bool": at("token_ids", value=[30, True, STOP]),
    "too many tokens": at("token_ids", value=[30, 10, 10, 10, 10, STOP]),
    "a token too few": at("token_ids", value=[30, STOP]),
    "tokens after the stop token": at("token_ids", value=[STOP, 10, STOP]),
    "stopped by no stop token": at("token_ids", value=[30, 10, 11]),
    "length before the limit": at("finish_reason", value="length"),
    "aborted": at("finish_reason", value="abort"),
    "positive": at("logprobs", "content", 0, "logprob", value=0.25),
    "one too many log-probs": at("logprobs", "content", value=[{"logprob": -0.5}] * 4),
    "one too few log-probs": at("logprobs", "content", value=[{"logprob": -0.5}] * 2),
    "log-prob of another token": at("logprobs", "content", 1, "token_id", value=11),
    "log-probs without objects": at("logprobs", "content", value=[-0.5, -0.25, 0.0]),
    "weights of an earlier version": at("weight_versions", 0, "version", value="older"),
    "tokens of unknown weights": at("weight_versions", 0, "end", value=2),
    "a version with a lone surrogate": at("weight_versions", 0, "version", value="\ud800"),
    "NaN": at("logprobs", "content", 0, "logprob", value=math.nan),
    "minus infinity": at("logprobs", "content", 0, "logprob", value=-math.inf),
    "no JSON": lambda _: b"<html>\x1b[2J</html>",
    "nothing": lambda _: b"",
    "bytes that are no text": lambda _: b"\xff\xfe\x00",
    "half of the reply": lambda reply: json.dumps(reply).encode()[:-9],
    "two replies": lambda reply: json.dumps(reply).encode() * 2,
    "nested deeply": lambda _: b'{"choices":' + b"[" * 100_000,
    "digits": lambda _: b'{"choices": ' + b"9" * 100_000 + b"}",
}


def as_bytes(reply):
    return reply if isinstance(reply, bytes) else json.dumps(reply).encode()


def test_a_reply_that_keeps_the_contract_is_read_in_the_order_of_its_indices():
    reply = good()
    for place, choice in enumerate(reply["choices"]):
        choice["token_ids"][0] = choice["logprobs"]["content"][0]["token_id"] = 30 + place
    reply["choices"].reverse()
    read = read_generated(as_bytes(reply), ASKED, "a server")
    assert [sample.token_ids.tolist() for sample in read] == [[30 + place, 10, STOP] for place in range(3)]
    assert [sample.logprobs.tolist() for sample in read] == [[-0.5, -0.25, 0.0]] * 3
    assert [sample.truncated for sample in read] == [False] * 3


def test_a_reply_may_leave_out_the_token_beside_a_logprob_and_name_several_spans_of_one_version():
    reply = good()
    reply["choices"][0]["logprobs"]["content"][0].pop("token_id")
    reply["choices"][0]["weight_versions"] = [
        {"version": "v", "start": 0, "end": 1},
        {"version": "v", "start": 1, "end": 3},
    ]
    reply["choices"][1]["usage"] = {"unknown": "field"}
    assert len(read_generated(as_bytes(reply), ASKED, "a server")) == 3


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_of_the_contract_is_one_error_that_names_the_server_and_the_setting(name):
    broken = as_bytes(BREACHES[name](good()))
    with pytest.raises(ForeignDataError, match=r"rollout\.engine\.url") as error:
        read_generated(broken, ASKED, "the server here")
    assert "the server here" in str(error.value)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 1000


def test_there_are_many_kinds_of_breaches_and_each_run_ends_with_the_right_samples_of_the_other_server(
    server, other, make_engine, caplog
):
    assert len(BREACHES) >= 40
    engine = make_engine(server.url, other.url, retries=0, timeout=120.0)
    engine.sync(WEIGHTS)
    plain = server.inference_v1_generate
    for name, change in BREACHES.items():
        server.calls.clear()
        server.inference_v1_generate = lambda body, change=change: as_bytes(change(plain(body)))
        assert sampled(engine, (3, 1, 9)) == EVERYTHING, name
        assert GENERATE in server.calls, f"{name}: the server that breaks it was asked"
    assert f"Asking other servers again what {server.url} got wrong" in caplog.text
    assert "choices" in caplog.text


def test_the_error_of_a_fleet_without_a_sound_server_names_the_field(server, make_engine):
    engine = make_engine(server.url, retries=1)
    engine.sync(WEIGHTS)
    plain = server.inference_v1_generate
    server.inference_v1_generate = lambda body: BREACHES["positive"](plain(body))
    with pytest.raises(
        EngineError, match=r"requests failed 2 times.*choices\[\d\]\.logprobs\.content\[0\]\.logprob"
    ):
        sampled(engine)


def drip(send, until):
    """Send a byte now and then."""
    while not until.wait(0.05):
        try:
            send(b"5")
        except OSError:
            return


@pytest.fixture
def raw_server():
    """A server that reads requests and answers with what `answer(send, until)` sends."""
    until, listening = threading.Event(), socket.create_server(("127.0.0.1", 0))

    def serve(answer):
        def one(connection):
            with connection:
                connection.recv(1 << 16)
                try:
                    answer(connection.sendall, until)
                except OSError:
                    return

        def accept():
            while not until.is_set():
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=one, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return server_calls.VLLMServer(f"http://127.0.0.1:{listening.getsockname()[1]}", 1.0, "token")

    yield serve
    until.set()
    listening.close()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def endless(send, until):
    send(HEAD + b"\r\n")
    while not until.is_set():
        send(b"[" * 65536)


def endless_by_chunks(send, until):
    send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    while not until.is_set():
        send(b"10000\r\n" + b" " * 65536 + b"\r\n")


def dripping_body(send, until):
    send(HEAD + b"Content-Length: 1000000\r\n\r\n")
    drip(send, until)


def dripping_head(send, until):
    send(HEAD + b"X-Slow: ")
    drip(send, until)


def endless_head(send, until):
    send(HEAD)
    while not until.is_set():
        send(b"X-Header: " + b"a" * 1000 + b"\r\n")


@pytest.mark.parametrize("answer", [endless, endless_by_chunks, dripping_body, dripping_head, endless_head])
def test_a_reply_is_bounded_in_bytes_and_seconds_however_it_arrives(raw_server, answer):
    server = raw_server(answer)
    with pytest.raises(server_calls.FAILURES):
        server.post("/anything", {}, most=1 << 20)


def test_a_dripping_reply_names_the_time_limit(raw_server):
    with pytest.raises(Exception, match=r"\b1 s") as error:
        raw_server(dripping_body).post("/anything", {})
    assert isinstance(error.value, server_calls.FAILURES)


def test_compressed_replies_are_not_unpacked(raw_server):
    content = gzip.compress(b'{"weight_version": "' + b"a" * 10_000 + b'"}')

    def answer(send, _):
        send(HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(content) + content)

    assert raw_server(answer).post("/weight_info") == content
    assert raw_server(answer).failure_to_hold("v").startswith("ForeignDataError")


@pytest.mark.parametrize("route", ["weight_info", "v1_models"])
@pytest.mark.parametrize(
    "reply",
    [
        None, [], {}, 3, "text", b"<html>", b"", b"\xff", {"weight_version": None}, {"weight_version": 3},
        {"weight_version": ["v"]}, {"weight_version": "\ud800"}, {"data": None}, {"data": []}, {"data": [None]},
        {"data": {}}, {"data": [{}]}, {"data": [{"max_model_len": None}]}, {"data": [{"max_model_len": "100"}]},
        {"data": [{"max_model_len": 0}]}, {"data": [{"max_model_len": 100.0}]}, {"data": [{"max_model_len": True}]},
        b"[" * 2000, b'{"weight_version": NaN}',
    ],
)  # fmt: skip
def test_a_control_route_that_breaks_its_contract_leaves_its_server_out(
    server, other, make_engine, route, reply
):
    setattr(server, route, lambda _: reply)
    engine = make_engine(server.url, other.url)
    engine.sync(WEIGHTS)
    assert list(engine.servers) == [other.url]
    assert sampled(engine) == EVERYTHING


def test_a_server_that_says_it_took_weights_but_did_not_is_left_out(server, other, make_engine, monkeypatch):
    monkeypatch.setattr(server_calls, "CONTROL_SECONDS", 1.0)
    server.update_weights = lambda _: {}
    engine = make_engine(server.url, other.url, timeout=120.0)
    engine.sync(WEIGHTS)
    assert list(engine.servers) == [other.url]


def test_a_server_that_does_not_name_the_weights_that_it_was_sent_is_left_out(server, other, make_engine):
    server.finish_weight_update = lambda _: {}
    engine = make_engine(server.url, other.url)
    engine.sync(WEIGHTS)
    assert list(engine.servers) == [other.url]


def choice_of(index, ids, logprobs, version="v"):
    """A truncated sample with these log-probs, all of one version of the weights."""
    return {
        "index": index,
        "token_ids": ids,
        "logprobs": {"content": [{"logprob": logprob} for logprob in logprobs]},
        "finish_reason": "length",
        "weight_versions": [{"version": version, "start": 0, "end": len(ids)}],
    }


def with_samples(texts, logprob):
    """A reply of the given responses, each token of which has the log-prob `logprob`."""
    choices = [choice_of(index, ids, [logprob] * len(ids)) for index, ids in enumerate(texts)]
    asked = ASKED._replace(num_samples=len(texts), max_new_tokens=len(texts[0]))
    return as_bytes({"choices": choices}), asked


def test_copies_of_a_long_response_are_refused_and_equal_short_or_certain_ones_are_not():
    long, other = [7] * 40, [8] * 40
    for texts in ([long, long], [long, other, long], [other, *[long] * 7]):
        reply, asked = with_samples(texts, -1.0)  # p = e^-40
        with pytest.raises(ForeignDataError, match="samples .*seeds"):
            read_generated(reply, asked, "a server")
        assert len(read_generated(reply, asked._replace(random=False), "a server")) == len(texts)
        reply, asked = with_samples(texts, -0.01)  # p = e^-0.4
        assert len(read_generated(reply, asked, "a server")) == len(texts)
    short = [7, 7, 7, 7]
    reply, asked = with_samples([short] * 8, -1.0)  # alone e^-4, but (e^-4)^7 = e^-28: no less than 1e-15
    assert len(read_generated(reply, asked, "a server")) == 8
    reply, asked = with_samples([short] * 11, -1.0)  # e^-40
    with pytest.raises(ForeignDataError, match="11 equal ones"):
        read_generated(reply, asked, "a server")


def test_independent_samples_are_never_taken_for_copies():
    """Of a small distribution, in which equal samples are common; the bound must hold for each of them."""
    generator = random.Random(0)
    for _ in range(300):
        sharpness, length, count = generator.uniform(0, 4), generator.randint(1, 12), generator.randint(2, 16)
        weights = [math.exp(-sharpness * token) for token in range(4)]
        logprobs = [math.log(weight / sum(weights)) for weight in weights]
        texts = [generator.choices(range(10, 14), weights, k=length) for _ in range(count)]
        choices = []
        for index, ids in enumerate(texts):
            choices.append(choice_of(index, ids, [logprobs[token - 10] for token in ids]))
        asked = ASKED._replace(num_samples=count, max_new_tokens=length)
        assert len(read_generated(as_bytes({"choices": choices}), asked, "a server")) == count


def test_greedy_responses_are_asked_for_once_and_repeated(server, make_engine):
    engine = make_engine(server.url)
    engine.sync(WEIGHTS)
    server.calls.clear()
    greedy = SamplingConfig(max_new_tokens=4, temperature=0.0)
    results = engine.generate(Request(PROMPTS, [3, 1, 70], greedy, 0))
    assert [len(samples) for samples in results] == [3, 1, 70]
    assert server.calls.count(GENERATE) == 1 + 1 + 2


def test_more_samples_than_one_request_takes_are_asked_for_in_several(server, make_engine):
    engine = make_engine(server.url)
    engine.sync(WEIGHTS)
    bodies, plain = [], server.inference_v1_generate
    server.inference_v1_generate = lambda body: bodies.append(body) or distinct(plain(body), body)
    (samples,) = engine.generate(Request(PROMPTS[:1], [130], SAMPLING, 0))
    assert [body["sampling_params"]["n"] for body in bodies] == [64, 64, 2]
    seeds = {body["sampling_params"]["seed"] - bodies[0]["sampling_params"]["seed"] for body in bodies}
    assert seeds == {0, 64, 128}
    assert len(samples) == 130


def distinct(reply, body):
    """Make the responses of a reply different ones."""
    for choice in reply["choices"]:
        token = 20 + (choice["index"] + body["sampling_params"]["seed"]) % 20
        choice["token_ids"] = [30, token, choice["token_ids"][-1]]
        choice["logprobs"] = {"content": [{"logprob": -0.5}] * 3}
    return reply


def test_a_deadline_leaves_no_timer_behind(server):
    alive = server_calls.VLLMServer(server.url, 60.0, shared_token())
    for _ in range(3):
        alive.post("/weight_info", method="GET")
    deadline = time.monotonic() + 20
    while any(isinstance(thread, threading.Timer) for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_completions_are_tensors_of_the_reply():
    (first, *_) = read_generated(as_bytes(good()), ASKED, "a server")
    assert first.token_ids.dtype == torch.long
    assert first.logprobs.dtype == torch.float32


def test_responses_of_an_earlier_request_for_the_same_prompt_are_copies_too():
    reply, asked = with_samples([[7] * 40, [8] * 40], -1.0)
    first = read_generated(reply, asked, "a server")
    with pytest.raises(ForeignDataError, match="samples .*seeds"):
        read_generated(reply, asked, "a server", first)
    other, _ = with_samples([[9] * 40, [10] * 40], -1.0)
    assert len(read_generated(other, asked, "a server", first)) == 2


def test_a_server_that_ignores_the_seeds_of_requests_is_not_believed(server, other, make_engine):
    def sampler(fake, seed_of):
        def generate(body):
            params = body["sampling_params"]
            generator = random.Random(seed_of(params["seed"]))
            choices = []
            for index in range(params["n"]):
                ids = [generator.randrange(3, 60) for _ in range(40)]
                choices.append(choice_of(index, ids, [-4.0] * 40, fake.version))
            return {"choices": choices}

        return generate

    engine = make_engine(server.url, other.url, timeout=120.0)
    engine.sync(WEIGHTS)
    server.inference_v1_generate = sampler(server, lambda _: 0)
    other.inference_v1_generate = sampler(other, lambda seed: seed)
    (samples,) = engine.generate(Request(PROMPTS[:1], [192], SamplingConfig(max_new_tokens=40), 0))
    assert len({tuple(sample.token_ids.tolist()) for sample in samples}) == 192


@pytest.mark.parametrize("context", [1, 5, 10**30])
def test_a_server_of_a_short_context_is_asked_for_nothing_longer(server, other, make_engine, context):
    server.v1_models = lambda _: {"data": [{"max_model_len": context}]}
    engine = make_engine(server.url, other.url)
    engine.sync(WEIGHTS)
    server.calls.clear()
    assert sampled(engine) == EVERYTHING  # of a prompt of 1 token and two longer ones, with 4 tokens each
    assert server.calls.count(GENERATE) <= {1: 0, 5: 1}.get(context, 3)


def test_prompts_that_no_server_has_room_for_name_the_longest_context(server, other, make_engine):
    for fake, context in ((server, 1), (other, 6)):
        fake.v1_models = lambda _, context=context: {"data": [{"max_model_len": context}]}
    engine = make_engine(server.url, other.url)
    engine.sync(WEIGHTS)
    with pytest.raises(ValueError, match="at most 6 tokens"):
        sampled(engine)


def test_a_server_that_uses_up_the_time_limit_is_asked_after_the_others(server, other, make_engine):
    released = threading.Event()
    server.fail = {GENERATE: lambda: released.wait(60)}
    engine = make_engine(server.url, other.url, timeout=1.0, retries=1)
    engine.sync(WEIGHTS)
    try:
        assert sampled(engine) == EVERYTHING
    finally:
        released.set()
    assert engine.overdue == {server.url}
    server.fail = {}
    engine.sync(WEIGHTS)
    assert not engine.overdue
