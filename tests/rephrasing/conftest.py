"""A scripted OpenAI-compatible server on loopback, which misbehaves on demand and counts what it charges for."""

from __future__ import annotations

import json
import re
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tagrpo.types import QuestionGroup

KEY = "sk-this-must-never-be-written"


def completion_of(message: Any, **facts: Any) -> bytes:
    """A completion with one choice; lone surrogates are written as JSON writes them."""
    return json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], **facts}).encode()


MALFORMED = {
    "null content": completion_of({"role": "assistant", "content": None}),
    "number as content": completion_of({"content": 7}),
    "list content": completion_of({"content": [{"type": "text", "text": "hm"}]}),
    "odd parts": completion_of(
        {"content": [None, 3, {"type": "image_url", "text": 5}, [], {"type": ["text"]}]}
    ),
    "text message": completion_of("Add 1 and 2."),
    "refusal": completion_of({"content": None, "refusal": "I can't help with that.\x1b[2J"}),
    "call of a tool": completion_of(
        {"content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    ),
    "thoughts alone": completion_of({"content": "<think><rephrasing>Add 1 and 2.</rephrasing>"}),
    "filtered": json.dumps(
        {"choices": [{"message": {"content": "<rephrasing>Add"}, "finish_reason": "content_filter"}]}
    ).encode(),
    "charged without a choice": b'{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}',
    "not UTF-8": b'{"choices": [{"message": {"content": "\xff\xfe"}}]}',
    "NaN": b'{"choices": [{"message": {"content": "?"}, "logprobs": {"content": [{"logprob": NaN}]}}]}',
    "byte order mark": "\ufeff".encode() + completion_of({"content": "?"}),
    "lone surrogate": completion_of({"content": "<rephrasing>Add 1 and 2, please \ud83d.</rephrasing>"}),
    "odd usage": completion_of({"content": "?"}, usage=[1]),
    "infinite usage": completion_of(
        {"content": "?"}, usage={"prompt_tokens": float("inf"), "completion_tokens": True}
    ),
    "odd names": completion_of({"content": "?"}, model={"a": 1}, id=7),
    "empty error beside": completion_of({"content": "?"}, error={"message": None, "code": 0}),
    "no rephrasing": completion_of({"content": "I can't do that."}),
    "never closed": completion_of({"content": "<rephrasing>" * 20_000}),
    "endless": completion_of({"content": f"<rephrasing>{'Add 1 and 2. ' * 20_000}</rephrasing>"}),
    "endless dollars": completion_of({"content": f"<rephrasing>{'$' * 2**18}</rephrasing>"}),
}
"""Bodies of replies that cost money and hold no usable rephrasing."""

_PASSING = {"code": 429, "message": "slow down"}
UNPAID = {
    "an error": json.dumps({"error": _PASSING}).encode(),
    "an error with a completion": completion_of({"content": "?"}, error=_PASSING),
    "an error in digits": b'{"error": {"code": "503", "message": "busy"}}',
    "an error by its type": b'{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}',
    "a text as error": b'{"error": "upstream timed out"}',
    "a text": b'"overloaded"',
    "a list of errors": b'[{"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE"}}]',
    "a nested error": b'{"data": {"response": {"error": {"error": {"detail": "busy"}}}}}',
    "errors": b'{"errors": [{"msg": "busy"}], "choices": null}',
    "a detail": b'{"detail": "busy"}',
    "an object error": b'{"object": "error", "message": "busy", "code": 50300}',
    "an error in the choice": json.dumps(
        {"choices": [{"error": _PASSING, "finish_reason": "error", "message": {"content": "<rephra"}}]}
    ).encode(),
    "an error in the choice alone": b'{"choices": [{"error": {"code": 502, "message": "provider"}}], "usage": null}',
    "an error in the message": b'{"choices": [{"message": {"content": "", "error": "busy"}}]}',
    "an error as reason": b'{"choices": [{"message": {"content": "Add 1"}, "finish_reason": "ERROR"}]}',
    "an error of MiniMax": b'{"choices": null, "base_resp": {"status_code": 1002, "status_msg": "rate limit"}}',
    "no message": b'{"choices": [{}]}',
    "no choices": b'{"object": "something else"}',
    "empty choices": b'{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 0}}',
    "choices as text": b'{"choices": "busy"}',
    "choices of null": b'{"choices": [null]}',
    "list": b"[1, 2]",
    "null": b"null",
    "number": b"3",
    "half of JSON": b'{"choices": [{"message": {"content": "<rephra',
    "html": b"<html>Bad gateway</html>",
    "empty": b"",
    "spaces": b" \n",
    "nested": b"[" * 100_000,
    "long number": b'{"choices": ' + b"9" * 10_000 + b"}",
}
"""Bodies of status 200 that hold no reply: nothing was paid for."""


class HTTPServer(ThreadingHTTPServer):
    """A server that many clients may connect to at once, on a busy machine too."""

    daemon_threads = True
    request_queue_size = 128


class ScriptedServer:
    """Chat completions of the OpenAI protocol.

    `script(user text, n)` says what happens to the n-th request (from 1) about the same text: `ok`, `429` with a
    Retry-After, `500`, `hang` until the server closes, `cut` the body off in transit, `drop` the connection, `quota`,
    `401`, `400`, one of `MALFORMED`, which are paid for like any reply, one of `UNPAID`, or a status and a body.
    """

    def __init__(self) -> None:
        self.script: Callable[[str, int], str | tuple[int, bytes]] = lambda text, n: "ok"
        self.reply: Callable[[dict[str, Any]], str] = sums
        self.asked: Counter[str] = Counter()
        """User text → requests."""
        self.paid: Counter[str] = Counter()
        """User text → answers that were sent to the last byte."""
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.holding = 0
        """Requests that hang now."""
        self.released = threading.Event()
        self.retry_after = "0.3"
        self.lock = threading.Lock()
        handler = type("Handler", (Handler,), {"scripted": self})
        self.http = HTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"

    def close(self) -> None:
        self.released.set()
        self.http.shutdown()
        self.http.server_close()

    def completion(self, body: dict[str, Any]) -> dict[str, Any]:
        message = {"role": "assistant", "content": self.reply(body)}
        choices = [{"index": 0, "finish_reason": "stop", "message": message}]
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex[:8]}", "object": "chat.completion", "created": 0,
            "model": body["model"] + "-2026", "choices": choices, "usage": usage,
        }  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    scripted: ScriptedServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def send_json(self, value: Any, status: int = 200, cut: int | None = None, **headers: str) -> None:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
            **headers,
        }.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        self.wfile.write(content[:cut])
        self.wfile.flush()
        if cut is not None:
            self.drop()

    def error(self, status: int, message: str, code: str = "", **headers: str) -> None:
        self.send_json({"error": {"message": message, "code": code, "type": "error"}}, status, **headers)

    def drop(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def do_POST(self) -> None:
        assert self.path == "/v1/chat/completions"
        self.chat(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def chat(self, body: dict[str, Any]) -> None:
        server, text = self.scripted, body["messages"][-1]["content"]
        with server.lock:
            server.asked[text] += 1
            server.bodies.append(body)
            server.headers.append({name.lower(): value for name, value in self.headers.items()})
            what = server.script(text, server.asked[text])
            server.holding += what == "hang"
        if what == "hang":
            server.released.wait()
            self.drop()
        elif what == "drop":
            self.drop()
        elif what == "cut":
            self.send_json(server.completion(body), cut=60)
        elif isinstance(what, tuple):
            self.send_json(what[1], what[0])
        elif what in UNPAID:
            self.send_json(UNPAID[what])
        elif what in MALFORMED:
            self.send_json(MALFORMED[what])
            with server.lock:
                server.paid[text] += 1
        elif what == "429":
            self.error(429, "slow down", Retry_After=server.retry_after)
        elif what == "500":
            self.error(500, "oh dear")
        elif what == "400":
            self.error(400, "this text is too long")
        elif what == "401":
            self.error(401, f"Incorrect API key provided: {KEY}")
        elif what == "quota":
            self.error(429, "You exceeded your current quota", "insufficient_quota")
        else:
            self.send_json(server.completion(body))
            with server.lock:
                server.paid[text] += 1


def rephrasings(texts: Iterable[str]) -> str:
    """A reply in the form that is asked for."""
    return "".join(f"<rephrasing>{text}</rephrasing>\n" for text in texts)


def sums(body: dict[str, Any]) -> str:
    """Replies to questions about a sum: rephrasings, or a judge's opinion."""
    system, user = body["messages"][0]["content"], body["messages"][1]["content"]
    a, b = re.findall(r"\d+", user)[:2]
    if "You compare" in system:
        return f"As I see it.\nEQUIVALENT: {'no' if 'How much' in user else 'yes'}"
    return rephrasings(
        [f"Add {a} and {b}.", f"How much is {a} plus {b}?", f"Compute the sum of {a} and {b}."]
    )


@pytest.fixture(autouse=True)
def every_client_speaks_plain_http(plain_http: None) -> None:
    pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    """A server that answers everything until it is told otherwise."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    scripted = ScriptedServer()
    yield scripted
    scripted.close()


@pytest.fixture
def questions(tmp_path: Path) -> Callable[[int], list[QuestionGroup]]:
    """So many questions about sums, also written to `questions.jsonl`."""

    def make(count: int) -> list[QuestionGroup]:
        rows = [
            {
                "id": f"q{i}",
                "question": f"What is the result of {i + 11} + {2 * i + 40}?",
                "answer": str(3 * i + 51),
            }
            for i in range(count)
        ]
        (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return [QuestionGroup(row["id"], row["question"], (), (row["answer"],)) for row in rows]

    return make
