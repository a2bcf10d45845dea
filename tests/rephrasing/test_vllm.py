"""The protocol as a real vLLM server speaks it; what the tiny policy writes is nonsense."""

from __future__ import annotations

import asyncio
import dataclasses
import time
import urllib.request

import pytest

from tagrpo.rephrasing.client import ChatClient, Server, ServerRefusedError
from tagrpo.rephrasing.requests import Request
from tagrpo.rephrasing.store import Store

pytestmark = pytest.mark.vllm


@pytest.fixture
def ready(vllm_server):
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{vllm_server}/health", timeout=1)
            return vllm_server
        except OSError:
            time.sleep(0.5)
    raise AssertionError("the server did not become ready")


def test_a_vllm_server_is_asked_once_falls_back_from_schemas_and_refuses_clearly(ready, tiny_policy, tmp_path):
    one = Request(
        purpose="solve",
        question="q",
        model=str(tiny_policy),
        system="Compute",
        user="Tom has 3 apples. He buys 2. How many?",
        parameters={"max_tokens": 8, "seed": 1},
        samples=3,
    )
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    wanted = [
        one,
        dataclasses.replace(one, user="Mia has 3 apples.", schema=schema, samples=1),
        dataclasses.replace(one, user="Tom " * 500, samples=1),
    ]
    settings = Server(base_url=f"{ready}/v1", api_key_env="NO_SUCH_KEY", first_wait=0.05, concurrency=1)
    with Store(tmp_path) as store:
        got = asyncio.run(ChatClient(settings, store).complete(wanted))
        assert list(got.failures) == [wanted[2].key]
        assert "maximum context length is 128" in got.failures[wanted[2].key]
        several, structured = (got.answers[request.key] for request in wanted[:2])
        assert (len(several.texts), several.usage.completion_tokens <= 24) == (3, True)
        assert several.usage.prompt_tokens > 10
        assert several.request_id.startswith("chatcmpl-")
        # Its vocabulary has no braces: vLLM breaks on the schema, and the same request in plain words is answered.
        assert structured.tries > 1
        nobody = dataclasses.replace(one, model="nope")
        with pytest.raises(ServerRefusedError, match="`nope` does not exist"):
            asyncio.run(ChatClient(settings, store).complete([nobody]))
    with Store(tmp_path) as store:
        unreachable = Server(base_url="http://127.0.0.1:9/v1")
        again = asyncio.run(ChatClient(unreachable, store).complete(wanted[:2]))
    assert again.answers == {key: got.answers[key] for key in again.answers}
    assert len(again.answers) == 2
