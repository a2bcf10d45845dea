from __future__ import annotations

import asyncio
import logging
import time

import pytest

from tagrpo.rephrasing.client import ChatClient, Server, ServerRefusedError
from tagrpo.rephrasing.requests import Answers, Request
from tagrpo.rephrasing.store import Store

SCHEMA = {"type": "object", "properties": {"rephrasings": {"type": "array"}}}


def requests(count, **facts):
    return [
        Request(
            purpose="rephrase",
            question=f"q{i}",
            model="m",
            system="Rephrase.",
            user=f"What is {i} + 1?",
            schema=SCHEMA,
            plain_format="Use tags.",
            **facts,
        )
        for i in range(count)
    ]


def ask(server, folder, wanted, **settings) -> Answers:
    quick = {"first_wait": 0.01, "longest_wait": 0.05, "timeout": 5.0, "concurrency": 4}
    with Store(folder) as store:
        client = ChatClient(Server(base_url=server.url, **{**quick, **settings}), store)
        return asyncio.run(client.complete(wanted))


@pytest.mark.parametrize("trouble", ["500", "drop", "truncate", "nonsense", "hang", "429"])
def test_a_request_survives_trouble_and_is_answered_once(server, tmp_path, trouble):
    server.script = lambda text, n: trouble if n <= 2 else "ok"
    got = ask(server, tmp_path, requests(3), timeout=0.5, longest_wait=1.0)
    assert not got.failures
    assert {answer.tries for answer in got.answers.values()} == {3}
    assert set(server.paid.values()) == {1}
    keys = {h["idempotency-key"] for h in server.headers}
    assert keys == set(got.answers), "all tries of a request carry one key"


def test_retry_after_is_waited_for_by_all(server, tmp_path):
    seen = []
    server.script = lambda text, n: (seen.append(time.monotonic()), "429" if len(seen) == 1 else "ok")[1]
    ask(server, tmp_path, requests(3), concurrency=1)
    assert seen[1] - seen[0] >= 0.3  # the server says 0.3 s, our own first wait is 0.01 s


def test_stored_answers_are_never_asked_again_and_the_file_survives_a_torn_line(server, tmp_path, caplog):
    first = ask(server, tmp_path, requests(5))
    answers = tmp_path / "answers.jsonl"
    content = answers.read_bytes()
    assert content.count(b"\n") == 5
    answers.write_bytes(content[:-40])  # killed in the middle of the fifth line
    with caplog.at_level(logging.WARNING):
        second = ask(server, tmp_path, requests(5))
    assert "torn" in caplog.text
    assert sorted(server.paid.values()) == [1, 1, 1, 1, 2], "only the torn answer is asked again"
    assert set(second.answers) == set(first.answers)
    answers.write_bytes(answers.read_bytes()[:-1])  # killed just before the line break
    ask(server, tmp_path, requests(5))
    assert sum(server.paid.values()) == 6


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(server, tmp_path):
    ask(server, tmp_path, requests(2))
    path = tmp_path / "answers.jsonl"
    path.write_text("{broken\n" + path.read_text())
    with pytest.raises(ValueError, match=r"answers.jsonl, line 1: expected JSON"):
        Store(tmp_path)


def test_two_processes_cannot_pay_for_the_same_job(tmp_path):
    with Store(tmp_path), pytest.raises(RuntimeError, match="another process works on it"):
        Store(tmp_path)
    Store(tmp_path).close()


def test_a_server_without_structured_outputs_is_asked_in_plain_words(server, tmp_path):
    server.script = lambda text, n: "no schema"
    got = ask(server, tmp_path, requests(6), concurrency=1)
    assert len(got.answers) == 6
    assert sum("response_format" in body for body in server.bodies) == 1, "asked for once, then remembered"
    plain = next(body for body in server.bodies if "response_format" not in body)
    assert plain["messages"][0]["content"].endswith("Use tags.")
    again = ask(server, tmp_path, requests(6), structured="never")
    assert sum(server.paid.values()) == 6, "the form on the wire is no part of what was paid for"
    assert set(again.answers) == set(got.answers)


def test_a_server_that_breaks_on_schemas_is_asked_in_plain_words_after_two_tries(server, tmp_path):
    server.script = lambda text, n: "schema breaks"
    got = ask(server, tmp_path, requests(4), concurrency=1)
    assert [answer.tries for answer in got.answers.values()] == [3, 1, 1, 1]


def test_a_request_that_cannot_be_answered_costs_nobody_else(server, tmp_path):
    server.script = lambda text, n: "400" if text == "What is 1 + 1?" else "ok"
    wanted = requests(4)
    got = ask(server, tmp_path, wanted)
    assert len(got.answers) == 3
    assert got.failures == {wanted[1].key: "HTTP 400: " + got.failures[wanted[1].key].removeprefix("HTTP 400: ")}
    assert "too long" in got.failures[wanted[1].key]


@pytest.mark.parametrize("trouble", ["401", "quota"])
def test_a_refusal_for_good_ends_the_job_at_once_without_quoting_the_key(server, tmp_path, trouble):
    server.script = lambda text, n: trouble if text != "What is 0 + 1?" else "ok"
    with pytest.raises(ServerRefusedError) as raised:
        ask(server, tmp_path, requests(50), concurrency=2)
    assert "sk-this" not in str(raised.value)
    assert sum(server.asked.values()) <= 4
    server.script = lambda text, n: "ok"
    assert len(ask(server, tmp_path, requests(50)).answers) == 50
    assert set(server.paid.values()) == {1}, "the answer before the refusal is kept"


def test_a_dead_server_is_given_up(server, tmp_path):
    server.script = lambda text, n: "500"
    with pytest.raises(ServerRefusedError, match="4 requests in a row failed 2 times"):
        ask(server, tmp_path, requests(50), tries=2)
    assert sum(server.asked.values()) <= 2 * 8


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
        return ["<rephrasing>x</rephrasing>"]

    server.reply = reply
    ask(server, tmp_path, requests(12), concurrency=3)
    assert most == 3


def test_equal_requests_are_asked_once(server, tmp_path):
    wanted = [*requests(2), *requests(2)]
    assert len(ask(server, tmp_path, wanted).answers) == 2
    assert sum(server.asked.values()) == 2


def test_openai_itself_needs_a_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ValueError, match="OPENAI_API_KEY"):
        Server().connect()
    assert Server(base_url="http://localhost:1/v1").connect().api_key == "none"


def test_the_key_of_a_request_is_what_its_answer_depends_on():
    (one,) = requests(1)
    assert one.key == requests(1)[0].key
    same = Request(**{**one.__dict__, "schema": None, "plain_format": "other", "expected_tokens": 9, "question": "z"})
    assert same.key == one.key
    changes = {"model": "n", "user": "?", "system": "!", "parameters": {"seed": 1}, "samples": 2, "attempt": 1}
    keys = {Request(**{**one.__dict__, name: value}).key for name, value in changes.items()}
    assert len(keys | {one.key}) == len(changes) + 1
