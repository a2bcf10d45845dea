from __future__ import annotations

import asyncio
import json

import pytest

from tagrpo.rephrasing.batch import BatchClient
from tagrpo.rephrasing.client import Server, ServerRefusedError
from tagrpo.rephrasing.requests import Request
from tagrpo.rephrasing.store import Store


def requests(count):
    schema = {"type": "object"}
    return [
        Request(purpose="rephrase", question=f"q{i}", model="m", system="s", user=f"{i} + 1?", schema=schema)
        for i in range(count)
    ]


def ask(server, folder, wanted, requests_per_batch=100, **settings):
    quick = {"first_wait": 0.01, "longest_wait": 0.05, "tries": 3}
    with Store(folder) as store:
        client = BatchClient(
            Server(base_url=server.url, **{**quick, **settings}),
            store,
            poll_seconds=0.01,
            requests_per_batch=requests_per_batch,
        )
        return asyncio.run(client.complete(wanted))


def leave_while_polling(server, folder, wanted):
    """A session that ends while its batch is under way."""
    server.polls_until_done = 10**9
    with Store(folder) as store:
        client = BatchClient(Server(base_url=server.url), store, poll_seconds=0.01)
        with pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(client.complete(wanted), timeout=0.6))


def test_answers_come_through_batches_of_bounded_size(server, tmp_path):
    got = ask(server, tmp_path, requests(5), requests_per_batch=2)
    assert len(server.batches) == 3
    assert len(got.answers) == 5
    assert all(answer.batch for answer in got.answers.values())
    again = ask(server, tmp_path, requests(5))
    assert (len(server.batches), set(again.answers)) == (3, set(got.answers))


@pytest.mark.parametrize("last", ["intent", "created"])
def test_a_session_killed_at_any_point_finds_its_batch_again(server, tmp_path, last):
    leave_while_polling(server, tmp_path, requests(4))
    journal = tmp_path / "batches.jsonl"
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [event["event"] for event in events] == ["intent", "created"]
    # Killed right after the server created the batch, before its id was noted: only the intent is on the disk.
    kept = [event for event in events if last == "created" or event["event"] == "intent"]
    journal.write_text("".join(json.dumps(event) + "\n" for event in kept))
    server.polls_until_done = 1
    got = ask(server, tmp_path, requests(4))
    assert len(got.answers) == 4
    assert len(server.batches) == 1, "the batch that was there is used"
    assert set(server.paid.values()) == {1}


def test_an_intent_whose_batch_never_came_about_is_asked_anew(server, tmp_path):
    event = {"event": "intent", "tag": "t", "requests": {r.key: {"purpose": "p", "question": "q"} for r in requests(2)}}
    (tmp_path / "batches.jsonl").write_text(json.dumps(event) + "\n")
    assert len(ask(server, tmp_path, requests(2)).answers) == 2
    assert len(server.batches) == 1


def test_a_lost_reply_to_the_creation_does_not_create_a_second_batch(server, tmp_path):
    server.create_fails_after_creating = 1
    assert len(ask(server, tmp_path, requests(3)).answers) == 3
    assert len(server.batches) == 1
    assert set(server.paid.values()) == {1}


def test_what_an_expired_batch_lacks_is_asked_again(server, tmp_path):
    server.script = lambda text, n: "expired" if text == "1 + 1?" and n == 1 else "ok"
    got = ask(server, tmp_path, requests(3))
    assert len(got.answers) == 3
    assert len(server.batches) == 2
    assert set(server.paid.values()) == {1}


def test_a_server_that_refuses_schemas_gets_a_second_batch_without(server, tmp_path):
    server.script = lambda text, n: "no schema"
    assert len(ask(server, tmp_path, requests(2)).answers) == 2
    assert [("response_format" in body) for body in server.bodies] == [True, True, False, False]


def test_answers_that_a_smaller_job_finds_in_an_old_batch_are_kept(server, tmp_path):
    leave_while_polling(server, tmp_path, requests(4))
    server.polls_until_done = 1
    ask(server, tmp_path, requests(1))
    ask(server, tmp_path, requests(4))
    assert len(server.batches) == 1
    assert set(server.paid.values()) == {1}


def test_a_refused_batch_says_why_and_is_not_waited_for_again(server, tmp_path):
    server.polls_until_done = 10**9

    def refuse(batch):
        batch["status"] = "failed"
        batch["errors"] = {"object": "list", "data": [{"code": "x", "message": "Enqueued token limit reached"}]}
        return batch

    server.http.RequestHandlerClass.advance = lambda self, batch: refuse(batch)
    with pytest.raises(ServerRefusedError, match="Enqueued token limit reached"):
        ask(server, tmp_path, requests(2))
    events = [json.loads(line)["event"] for line in (tmp_path / "batches.jsonl").read_text().splitlines()]
    assert events == ["intent", "created", "over"]
