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
    [("121", False), ("1e400", False), ("Fri, 31 Dec 99999999999 23:59:59 GMT", True), ("nan", True), ("-1", True)],
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
    with ReplyCache(tmp_path / "replies.jsonl"), pytest.raises(RuntimeError, match="another process is using it"):
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


@pytest.mark.parametrize(("trouble", "said"), [("401", "Error code: 401"), ("quota", "exceeded your current quota")])
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
    with pytest.raises(ServerRefusedError, match="4 calls in a row failed 2 times each. .* Error code: 500"):
        ask(server, tmp_path, calls(50), max_retries=1)
    assert sum(server.asked.values()) <= 2 * 8
    nowhere = Server(base_url="http://127.0.0.1:9/v1", max_retries=0)
    with ReplyCache(tmp_path / "replies.jsonl") as cache, pytest.raises(ServerRefusedError, match="Connection error"):
        asyncio.run(Client(nowhere, cache).complete(calls(9)))


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
    ask(server, tmp_path, calls(1, parameters={"temperature": 0.5, "seed": 3, "top_k": 7, "stop": ["</end>"]}))
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
    with pytest.raises(ValueError, match="name of an environment variable") as refused:
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
