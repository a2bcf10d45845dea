from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import math
import time

import pytest

from tagrpo.rephrasing.calls import ApiCall, Usage
from tagrpo.rephrasing.client import Client, Prices, ReplyCache, Server, ServerRefusedError, costs, expected

from .conftest import KEY, UNPAID, completion_of


def calls(count, **facts):
    return [
        ApiCall(purpose="rephrase", model="m", system="Rephrase.", user=f"What is {i} + 1?", **facts)
        for i in range(count)
    ]


def ask(server, folder, wanted, **settings):
    quick = {"max_retries": 2, "timeout": 60.0, "concurrency": 4}
    with ReplyCache(folder / "replies.jsonl") as cache:
        client = Client(Server(base_url=server.url, **{**quick, **settings}), cache)
        return asyncio.run(client.complete(wanted)), client.failures


@pytest.mark.parametrize("trouble", ["500", "drop", "cut", "hang", "429"])
def test_a_call_survives_trouble_and_is_answered_once(server, tmp_path, trouble):
    server.script = lambda text, n: trouble if n <= 2 else "ok"
    replies, failures = ask(server, tmp_path, calls(3), timeout=3.0 if trouble == "hang" else 60.0)
    assert not failures
    assert all(reply.text for reply in replies)
    assert set(server.asked.values()) == {3}
    assert set(server.paid.values()) == {1}
    keys = {headers["idempotency-key"] for headers in server.headers}
    assert keys == {call.key for call in calls(3)}, "all tries of a call carry one key"


def test_retry_after_is_waited_for(server, tmp_path):
    seen = []
    server.retry_after = "1.5"
    server.script = lambda text, n: (seen.append(time.monotonic()), "429" if len(seen) == 1 else "ok")[1]
    ask(server, tmp_path, calls(1))
    assert seen[1] - seen[0] >= 1.5  # the first wait of the openai client itself is 0.5 s


@pytest.mark.parametrize(
    ("told", "answered"),
    [
        ("121", False),
        ("1e400", False),
        ("Fri, 31 Dec 99999999999 23:59:59 GMT", True),
        ("nan", True),
        ("-1", True),
    ],
)
def test_an_absurd_retry_after_costs_its_own_call_at_most_and_nobody_waits_for_it(
    server, tmp_path, monkeypatch, told, answered
):
    waited = []

    async def sleep(seconds):
        waited.append(seconds)

    monkeypatch.setattr("anyio.sleep", sleep)
    server.retry_after = told
    server.script = lambda text, n: "429" if text == "What is 1 + 1?" and n == 1 else "ok"
    replies, failures = ask(server, tmp_path, calls(3))
    assert [bool(reply.text) for reply in replies] == [True, answered, True]
    assert [bool(reply.fault) for reply in replies] == [False, not answered, False]
    assert len(failures) == (not answered)
    assert all(seconds < 2 for seconds in waited)
    assert len(waited) == answered, "a call that is told to wait for more than two minutes fails at once"


def test_stored_replies_are_never_asked_again_and_the_file_survives_a_torn_line(server, tmp_path, caplog):
    first, _ = ask(server, tmp_path, calls(5))
    path = tmp_path / "replies.jsonl"
    content = path.read_bytes()
    assert content.count(b"\n") == 5
    path.write_bytes(content[:-40])  # killed in the middle of the fifth line
    with caplog.at_level(logging.WARNING):
        second, _ = ask(server, tmp_path, calls(5))
    assert "line 5: skipped" in caplog.text
    assert sorted(server.paid.values()) == [1, 1, 1, 1, 2], "only the torn reply is asked for again"
    assert [reply.text for reply in second] == [reply.text for reply in first]
    path.write_bytes(path.read_bytes()[:-1])  # killed just before the line break
    ask(server, tmp_path, calls(6))
    assert sum(server.paid.values()) == 7
    ask(server, tmp_path, calls(6))
    assert sum(server.paid.values()) == 7


def test_the_body_of_a_reply_is_stored_as_it_came(server, tmp_path):
    server.script = lambda text, n: "lone surrogate"
    ((reply,), _) = ask(server, tmp_path, calls(1))
    (row,) = map(json.loads, (tmp_path / "replies.jsonl").read_text().splitlines())
    assert r"please \ud83d." in row["body"]
    assert reply.text == "<rephrasing>Add 1 and 2, please \ufffd.</rephrasing>"


def test_a_broken_line_in_the_middle_is_named_and_costs_its_own_reply(server, tmp_path, caplog):
    ask(server, tmp_path, calls(2))
    path = tmp_path / "replies.jsonl"
    path.write_text("{broken\n" + path.read_text())
    ask(server, tmp_path, calls(2))
    assert "replies.jsonl, line 1: skipped" in caplog.text
    assert sum(server.paid.values()) == 2


def test_two_processes_cannot_pay_for_the_same_job(tmp_path):
    with (
        ReplyCache(tmp_path / "replies.jsonl"),
        pytest.raises(RuntimeError, match="another process"),
    ):
        ReplyCache(tmp_path / "replies.jsonl")
    with ReplyCache(tmp_path / "replies.jsonl"):
        pass


def test_a_call_that_cannot_be_answered_costs_nobody_else(server, tmp_path):
    server.script = lambda text, n: "400" if text == "What is 1 + 1?" else "ok"
    replies, failures = ask(server, tmp_path, calls(4))
    assert list(failures.values()) == ["Error code: 400 - this text is too long"]
    assert [bool(reply.text) for reply in replies] == [True, False, True, True]
    assert replies[1].fault == "Error code: 400 - this text is too long"
    assert server.asked["What is 1 + 1?"] == 1, "such a failure is not repeated"


@pytest.mark.parametrize(
    ("trouble", "said"), [("401", "Error code: 401"), ("quota", "exceeded your current quota")]
)
def test_a_refusal_ends_the_job_at_once_and_keeps_what_is_on_its_way(server, tmp_path, trouble, said):
    server.script = lambda text, n: trouble if text != "What is 0 + 1?" else "ok"
    server.reply = lambda body: time.sleep(0.3) or "<rephrasing>x</rephrasing>"
    with pytest.raises(ServerRefusedError, match=said) as refusal:
        ask(server, tmp_path, calls(50), max_retries=0)
    assert "sk-this" not in str(refusal.value)
    assert sum(server.asked.values()) <= 4 + 1
    assert server.paid["What is 0 + 1?"] == 1
    server.script = lambda text, n: "ok"
    server.reply = lambda body: "<rephrasing>x</rephrasing>"
    assert len(ask(server, tmp_path, calls(50))[0]) == 50
    assert set(server.paid.values()) == {1}, "the reply that arrived after the refusal is kept"


def test_a_dead_server_is_given_up(server, tmp_path):
    server.script = lambda text, n: "500"
    with pytest.raises(ServerRefusedError, match="4 calls .* 2 times .*500"):
        ask(server, tmp_path, calls(50), max_retries=1)
    assert sum(server.asked.values()) <= 2 * 8
    nowhere = Server(base_url="http://127.0.0.1:9/v1", max_retries=0)
    with (
        ReplyCache(tmp_path / "replies.jsonl") as cache,
        pytest.raises(ServerRefusedError, match="Connection error"),
    ):
        asyncio.run(Client(nowhere, cache).complete(calls(9)))


@pytest.fixture
def impatient(monkeypatch):
    """The client's pauses between retries take no time; returns their lengths in seconds."""
    waited = []

    async def sleep(seconds):
        waited.append(seconds)

    monkeypatch.setattr("anyio.sleep", sleep)
    return waited


@pytest.mark.parametrize("kind", UNPAID)
def test_an_error_in_a_body_of_status_200_is_retried_and_not_stored(server, tmp_path, impatient, kind):
    server.script = lambda text, n: kind if n <= 2 else "ok"
    replies, failures = ask(server, tmp_path, calls(3))
    assert not failures
    assert all(reply.text for reply in replies)
    assert set(server.asked.values()) == {3}
    assert len(impatient) == 6, "there is a pause before each retry"
    rows = [json.loads(line) for line in (tmp_path / "replies.jsonl").read_text().splitlines()]
    assert all("<rephrasing>Add" in row["body"] for row in rows)
    assert len(rows) == 3


def test_an_error_that_stays_is_no_reply_and_the_next_session_asks_again(server, tmp_path, impatient):
    server.script = lambda text, n: "an error in the choice" if text == "What is 1 + 1?" and n <= 3 else "ok"
    replies, failures = ask(server, tmp_path, calls(3))
    assert [bool(reply.text) for reply in replies] == [True, False, True]
    assert list(failures.values()) == ["Error code: 429 - slow down"]
    assert replies[1].fault == "Error code: 429 - slow down"
    again, failures = ask(server, tmp_path, calls(3))
    assert not failures
    assert all(reply.text for reply in again)
    assert set(server.paid.values()) == {1}


def test_errors_that_were_stored_as_replies_are_asked_again(server, tmp_path, caplog):
    rows = [
        {"key": call.key, "time": "2026-01-01T00:00:00+00:00", "body": body.decode()}
        for call, body in zip(
            calls(3), [UNPAID["an error"], UNPAID["empty"], completion_of("Add.")], strict=True
        )
    ]
    (tmp_path / "replies.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    replies, failures = ask(server, tmp_path, calls(3))
    assert not failures
    assert [reply.text == "Add." for reply in replies] == [False, False, True]
    assert sum(server.paid.values()) == 2
    assert "line 1: skipped" in caplog.text


@pytest.mark.parametrize(
    "body", [b'{"error": {"code": 402, "message": "no credit"}}', b'[{"error": {"type": "not_found_error"}}]']
)
def test_a_refusal_of_everybody_in_a_body_of_status_200_ends_the_job(server, tmp_path, body):
    server.script = lambda text, n: (200, body)
    with pytest.raises(ServerRefusedError, match="server.base_url"):
        ask(server, tmp_path, calls(40), concurrency=32)
    assert sum(server.asked.values()) == 1


def refused(message, **facts):
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", **facts}}).encode()


PARAMETERS = {"max_tokens": 2048, "temperature": 0.0, "seed": 1, "top_k": 5}


@pytest.mark.parametrize(
    ("status", "body", "advice"),
    [
        (
            400,
            refused(
                "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' "
                "instead.",
                param="max_tokens",
                code="unsupported_parameter",
            ),
            "Set '~rephraser.parameters.max_tokens' '+rephraser.parameters.max_completion_tokens=2048'",
        ),
        (
            400,
            refused("max_tokens is too large: 2048. This model supports at most 1024."),
            "rephraser.parameters.max_tokens",
        ),
        (200, refused("max_tokens must be at most 1024"), "rephraser.parameters.max_tokens"),
        (
            400,
            refused("'max_tokens' is too large: 2048. This model's maximum context length is 1024 tokens."),
            "max_tokens",
        ),
        (
            400,
            refused("Unsupported value: 'temperature' does not support 0.0.", param="temperature"),
            "parameters.temperature",
        ),
        (
            422,
            b'{"detail": [{"loc": ["body", "top_k"], "msg": "extra fields not permitted"}]}',
            "parameters.top_k",
        ),
        (400, refused("Unrecognized request argument supplied: top_k"), "~rephraser.parameters.top_k"),
        (400, refused("invalid", param="seed"), "rephraser.seed=null"),
        (400, refused("invalid model", param="model"), "rephraser.model"),
    ],
)
def test_a_parameter_that_the_server_refuses_ends_the_job_at_the_first_call(
    server, tmp_path, status, body, advice
):
    server.script = lambda text, n: (status, body)
    with pytest.raises(ServerRefusedError) as refusal:
        ask(server, tmp_path, calls(40, parameters=PARAMETERS), concurrency=32)
    assert advice in str(refusal.value)
    assert json.loads(body).get("error", {}).get("message", "not permitted") in str(refusal.value)
    assert sum(server.asked.values()) == 1


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
        "max_tokens is too large: 2048. Your request has 7000 input tokens.",
        "Please reduce the length of the messages or completion.",
        "Your request was rejected by the safety system",
    ],
)
def test_a_question_that_the_server_refuses_costs_nobody_else(server, tmp_path, message):
    body = refused(message, param="messages")
    server.script = lambda text, n: (400, body) if text in ("What is 0 + 1?", "What is 3 + 1?") else "ok"
    replies, failures = ask(server, tmp_path, calls(6, parameters=PARAMETERS))
    assert [bool(reply.text) for reply in replies] == [False, True, True, False, True, True]
    assert set(failures.values()) == {f"Error code: 400 - {message}"}


def test_a_server_that_refuses_every_question_is_left_after_a_few(server, tmp_path):
    server.script = lambda text, n: (400, refused("no"))
    with pytest.raises(ServerRefusedError, match="rephraser.parameters"):
        ask(server, tmp_path, calls(40), concurrency=32)
    assert sum(server.asked.values()) == 4


def test_later_calls_are_not_ended_by_a_parameter_that_was_accepted(server, tmp_path):
    server.script = lambda text, n: (400, refused("max_tokens")) if text == "What is 2 + 1?" else "ok"
    replies, _ = ask(server, tmp_path, calls(5, parameters=PARAMETERS))
    assert [bool(reply.text) for reply in replies] == [True, True, False, True, True]


ECHOES = {
    "model": lambda key: completion_of({"content": "Add 1."}, model=key),
    "id": lambda key: completion_of({"content": "Add 1."}, id=f"for {key}"),
    "text": lambda key: completion_of({"content": f"Add 1. {key}"}),
    "part": lambda key: completion_of({"content": [{"type": "text", "text": f"Add 1. {key}"}]}),
    "fault": lambda key: completion_of({"content": None, "note": key}),
    "refusal": lambda key: completion_of({"content": None, "refusal": f"wrong key {key}"}),
    "name of a field": lambda key: completion_of({"content": "Add 1.", key: 1}),
    "escaped": lambda key: completion_of({"content": "Add 1."}, model="MODEL").replace(
        b"MODEL", "".join(f"\\u{ord(letter):04x}" for letter in key).encode()
    ),
    "given twice": lambda key: (
        completion_of({"content": "Add 1."}, model=key)
        .replace(b'"choices"', b'"model": "m", "choices"', 1)
        .replace(b"}]}", b'}], "model": "m"}')
    ),
}


@pytest.mark.parametrize("variable", ["OPENAI_API_KEY", "WHAT_I_PAY_WITH"])
@pytest.mark.parametrize("place", ECHOES)
def test_a_key_that_the_server_echoes_is_never_kept(server, tmp_path, monkeypatch, caplog, place, variable):
    key = KEY if variable == "OPENAI_API_KEY" else "correct horse battery staple"
    monkeypatch.setenv(variable, key)
    server.script = lambda text, n: (200, ECHOES[place](key))
    settings = Server(base_url=server.url, api_key_env=variable)
    for _ in range(2):  # asked, then read from the file
        with ReplyCache(tmp_path / "replies.jsonl", secrets=[settings.key]) as cache:
            (reply,) = asyncio.run(Client(settings, cache).complete(calls(1)))
        assert key not in str(reply) + caplog.text
        content = (tmp_path / "replies.jsonl").read_text()
        assert key not in content + json.loads(content)["body"]
        assert "removed" in json.loads(content)["body"]
    assert sum(server.asked.values()) == 1


def test_a_key_in_a_file_of_before_is_not_read(tmp_path):
    row = {
        "key": "k",
        "time": "",
        "body": completion_of({"content": "Add 1."}, model="a key of mine").decode(),
    }
    (tmp_path / "replies.jsonl").write_text(json.dumps(row) + "\n")
    with ReplyCache(tmp_path / "replies.jsonl", secrets=["a key of mine"]) as cache:
        assert cache["k"].model == "<removed>"


def test_an_error_message_is_shown_without_escapes_and_keys(server, tmp_path):
    said = f"\x1b]0;pwned\x07\x1b[2J key {KEY} and gsk_{'a1' * 20}\n\u202e"
    server.script = lambda text, n: (404, json.dumps({"error": {"message": said}}).encode())
    with pytest.raises(ServerRefusedError) as refusal:
        ask(server, tmp_path, calls(2))
    shown = str(refusal.value)
    assert shown.isprintable()
    assert r"\x1b]0;pwned\x07\x1b[2J key [key] and <removed>" in shown


def test_concurrency_is_bounded(server, tmp_path):
    active, most = 0, 0

    def reply(body):
        nonlocal active, most
        with server.lock:
            active += 1
            most = max(most, active)
        time.sleep(0.05)
        with server.lock:
            active -= 1
        return "<rephrasing>x</rephrasing>"

    server.reply = reply
    ask(server, tmp_path, calls(12), concurrency=3)
    assert most == 3


def test_equal_calls_are_asked_once(server, tmp_path):
    with ReplyCache(tmp_path / "replies.jsonl") as cache:
        client = Client(Server(base_url=server.url), cache)
        replies = asyncio.run(client.complete([*calls(2), *calls(2)]))
    assert [reply.text for reply in replies[:2]] == [reply.text for reply in replies[2:]]
    assert sum(server.asked.values()) == 2


def test_sampling_parameters_reach_the_server_as_they_are(server, tmp_path):
    ask(
        server, tmp_path, calls(1, parameters={"temperature": 0.5, "seed": 3, "top_k": 7, "stop": ["</end>"]})
    )
    (body,) = server.bodies
    assert body.pop("messages")[1] == {"role": "user", "content": "What is 0 + 1?"}
    assert body == {"model": "m", "temperature": 0.5, "seed": 3, "top_k": 7, "stop": ["</end>"]}


def test_a_question_with_a_broken_character_is_asked_without_it(server, tmp_path):
    broken = dataclasses.replace(calls(1)[0], user="What is 1 + 1 \ud83d?")
    ((reply,), _) = ask(server, tmp_path, [broken])
    assert reply.text
    assert server.bodies[0]["messages"][1]["content"] == "What is 1 + 1 \ufffd?"


def test_openai_itself_needs_a_key_and_a_key_is_no_name_of_a_variable(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ValueError, match="OPENAI_API_KEY"):
        Server().connect()
    assert Server(base_url="http://localhost:1/v1").connect().api_key == "none"
    with pytest.raises(ValueError, match=r"server\.api_key_env") as refused:
        Server(api_key_env="sk-secret")
    assert "secret" not in str(refused.value)
    with pytest.raises(ValueError, match="server.concurrency ≥ 1"):
        Server(concurrency=0)


def test_the_key_of_a_call_is_what_its_reply_depends_on():
    (one,) = calls(1)
    assert one.key == calls(1)[0].key
    assert dataclasses.replace(one, purpose="other", expected_tokens=9).key == one.key
    changes = {"model": "n", "user": "?", "system": "!", "parameters": {"seed": 1}, "attempt": 1}
    keys = {dataclasses.replace(one, **{name: value}).key for name, value in changes.items()}
    assert len(keys | {one.key}) == len(changes) + 1


PRICES = {"m": Prices(prompt=10.0, completion=30.0)}


def call(user="x" * 70, **facts):
    known = {"purpose": "rephrase", "model": "m", "system": ""}
    return ApiCall(**{**known, "user": user, "expected_tokens": 40, **facts})


def test_an_estimate_counts_characters_and_expected_tokens():
    (row,) = costs(expected([call(), call(), call("y" * 35)], {}), PRICES).to_dict("records")
    assert row["calls"] == 2, "equal calls are asked once"
    assert (row["prompt tokens"], row["completion tokens"]) == (20 + 10, 40 + 40)
    assert row["cost"] == pytest.approx((30 * 10 + 80 * 30) / 1e6)


def test_what_has_a_reply_costs_nothing():
    asked = [call(user=str(i)) for i in range(5)]
    assert costs(expected(asked, {c.key for c in asked[:3]}), PRICES)["calls"].tolist() == [2]
    assert costs(expected(asked, {c.key for c in asked}), PRICES).empty


def test_an_account_adds_up_what_servers_said():
    answered = [(call(), Usage(1000, 100)), (call("other"), Usage(600, 100)), (call(model="n"), Usage(1, 1))]
    first, second = costs(answered, PRICES).to_dict("records")
    assert (first["calls"], first["prompt tokens"], first["completion tokens"]) == (2, 1600, 200)
    assert first["cost"] == pytest.approx((1000 * 10 + 100 * 30 + 600 * 10 + 100 * 30) / 1e6)
    assert math.isnan(second["cost"])
