"""Servers that are played by a few lines of HTTP, and engines of them."""

from __future__ import annotations

import pytest

from tagrpo.rollouts.servers.vllm_server import VLLMServerEngine
from tests.rollouts.fake_server import FakeServer


def fake_server():
    server = FakeServer()
    yield server
    server.close()


server, other = (pytest.fixture(fake_server, name=name) for name in ("server", "other"))


@pytest.fixture(autouse=True)
def every_client_speaks_plain_http(plain_http):
    pass


@pytest.fixture
def make_engine(tiny_policy):
    def make(*urls, **options):
        defaults = {"dtype": "float32", "timeout": 5.0, "retries": 2, "patience": 0.5}
        return VLLMServerEngine(str(tiny_policy), list(urls), **{**defaults, **options})

    return make
