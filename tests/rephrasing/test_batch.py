from __future__ import annotations

import asyncio
import json

import pytest

from tagrpo.rephrasing.batch import BatchClient
from tagrpo.rephrasing.cache import ReplyCache
from tagrpo.rephrasing.calls import ApiCall
from tagrpo.rephrasing.client import Server, ServerRefusedError

from .conftest import KEY


def calls(count):
    return [ApiCall(purpose="rephrase", model="m", system="s", user=f"{i} + 1?") for i in range(count)]


def session(server, folder, wanted, **settings):
    with ReplyCache(folder / "replies.jsonl") as cache:
        client = BatchClient(
            Server(base_url=server.url, max_retries=2), cache, lambda answered, wanted: None,
            **{"poll_seconds": 0.01, "calls_per_batch": 100, **settings},
        )  # fmt: skip
        yield asyncio.run(client.complete(wanted))
        yield client.failures


def ask(server, folder, wanted, **settings):
    return next(session(server, folder, wanted, **settings))


def leave_while_polling(server, folder, wanted):
    """A session that ends while its batch is under way."""
    server.polls_until_done = 10**9
    with ReplyCache(folder / "replies.jsonl") as cache:
        client = BatchClient(Server(base_url=server.url), cache, lambda answered, wanted: None, poll_seconds=0.01)

        async def leave():
            session = asyncio.create_task(client.complete(wanted))
            while not any(batch["polls"] for batch in server.batches.values()):
                await asyncio.sleep(0.01)
            session.cancel()
            with pytest.raises(asyncio.CancelledError):
                await session

        asyncio.run(leave())


def test_replies_come_through_batches_of_bounded_size(server, tmp_path):
    replies = ask(server, tmp_path, calls(5), calls_per_batch=2)
    assert len(server.batches) == 3
    assert all(reply.text and reply.batch for reply in replies)
    again = ask(server, tmp_path, calls(5))
    assert (len(server.batches), again) == (3, replies)


def test_a_session_killed_at_any_point_finds_its_batch_again(server, tmp_path):
    leave_while_polling(server, tmp_path, calls(4))
    (row,) = map(json.loads, (tmp_path / "replies.jsonl").read_text().splitlines())
    assert row == {"file": "file-0", "keys": [call.key for call in calls(4)], "status": None}
    server.polls_until_done = 1
    assert len(ask(server, tmp_path, calls(4))) == 4
    assert len(server.batches) == 1, "the batch that was there is used"
    assert set(server.paid.values()) == {1}


def test_a_file_whose_batch_never_came_about_is_forgotten(server, tmp_path):
    row = {"file": "file-unknown", "keys": [call.key for call in calls(2)], "status": None}
    (tmp_path / "replies.jsonl").write_text(json.dumps(row) + "\n")
    assert all(reply.text for reply in ask(server, tmp_path, calls(2)))
    assert len(server.batches) == 1


def test_a_lost_response_to_the_creation_does_not_create_a_second_batch(server, tmp_path):
    server.create_fails_after_creating = 1
    assert all(reply.text for reply in ask(server, tmp_path, calls(3)))
    assert len(server.batches) == 1
    assert set(server.paid.values()) == {1}


def test_what_an_expired_batch_lacks_is_asked_for_in_the_next_session(server, tmp_path):
    server.script = lambda text, n: "expired" if text == "1 + 1?" and n == 1 else "ok"
    replies = ask(server, tmp_path, calls(3))
    assert [reply.fault for reply in replies] == ["", "its batch ended without a reply", ""]
    assert all(reply.text for reply in ask(server, tmp_path, calls(3)))
    assert len(server.batches) == 2
    assert set(server.paid.values()) == {1}


def test_a_refused_call_and_unreadable_results_cost_nobody_else(server, tmp_path):
    server.script = lambda text, n: "400" if text == "1 + 1?" else "ok"
    server.tail = '{"custom_id": 3\n[1]\n{}\n{"custom_id": "x", "response": [5]}\n' + "[" * 10**5
    *_, failures = session(server, tmp_path, calls(3))
    assert list(failures) == [calls(3)[1].key]
    (said,) = failures.values()
    assert said.startswith("HTTP 400")
    assert KEY not in said
    assert set(server.paid.values()) == {1}


def test_replies_that_a_smaller_job_finds_in_an_old_batch_are_kept(server, tmp_path):
    leave_while_polling(server, tmp_path, calls(4))
    server.polls_until_done = 1
    ask(server, tmp_path, calls(1))
    ask(server, tmp_path, calls(4))
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
        ask(server, tmp_path, calls(2))
    rows = [json.loads(line) for line in (tmp_path / "replies.jsonl").read_text().splitlines()]
    assert [row["status"] for row in rows] == [None, "failed"]


def test_a_server_without_batches_is_named(server, tmp_path):
    server.http.RequestHandlerClass.create_batch = lambda self, body: self.error(404, "no such thing")
    with pytest.raises(ServerRefusedError, match="batch.enabled=false"):
        ask(server, tmp_path, calls(2))
