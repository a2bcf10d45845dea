"""The protocol as a real vLLM server speaks it; what the tiny policy writes is nonsense."""

from __future__ import annotations

import asyncio
import dataclasses
import time
import urllib.request

import pytest

from tagrpo.rephrasing.calls import ApiCall
from tagrpo.rephrasing.client import Client, ReplyCache, Server, ServerRefusedError
from tagrpo.rollouts.servers.access import shared_token

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


@pytest.fixture
def ready(vllm_server):
    for _ in range(600):
        try:
            token = {"Authorization": f"Bearer {shared_token()}"}
            urllib.request.urlopen(urllib.request.Request(f"{vllm_server}/health", headers=token), timeout=1)
            return vllm_server
        except OSError:
            time.sleep(0.5)
    raise AssertionError("the server did not become ready")


def test_a_vllm_server_is_asked_once_and_refuses_clearly(ready, tiny_policy, tmp_path):
    parameters = {"max_tokens": 8, "seed": 1, "top_k": 5}
    user = "Tom has 3 apples. He buys 2. How many?"
    one = ApiCall(
        purpose="rephrase", model=str(tiny_policy), system="Compute", user=user, parameters=parameters
    )
    wanted = [
        one,
        dataclasses.replace(one, user="Mia has 3 apples."),
        dataclasses.replace(one, user="Tom " * 500),
    ]
    settings = Server(base_url=f"{ready}/v1", api_key_env="TAGRPO_TOKEN", concurrency=1)
    with ReplyCache(tmp_path / "replies.jsonl") as cache:
        client = Client(settings, cache)
        replies = asyncio.run(client.complete(wanted))
        assert list(client.failures) == [wanted[2].key]
        assert "maximum context length is 128" in client.failures[wanted[2].key]
        assert (replies[0].text, replies[0].fault) == ("", "it was cut off at its limit of tokens")
        assert 10 < replies[0].usage.prompt_tokens < 128
        assert 0 < replies[0].usage.completion_tokens <= 8
        nobody = dataclasses.replace(one, model="nope")
        with pytest.raises(ServerRefusedError, match="`nope` does not exist"):
            asyncio.run(client.complete([nobody]))
    with ReplyCache(tmp_path / "replies.jsonl") as cache:
        unreachable = Server(base_url="http://127.0.0.1:9/v1")
        again = asyncio.run(Client(unreachable, cache).complete(wanted[:2]))
    assert again == replies[:2]
