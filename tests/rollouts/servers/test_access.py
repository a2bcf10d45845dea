"""The token of servers: a real HTTP server with an application behind the guard."""

from __future__ import annotations

import stat
import threading
import time

import httpx
import pytest

from tagrpo.rollouts.servers import access
from tagrpo.rollouts.servers.access import RequireToken, shared_token
from tagrpo.rollouts.transfer.flags import REPORT

TOKEN = "a secret of some length"


@pytest.fixture
def url(monkeypatch):
    """Of a server whose application answers every request with its path."""
    uvicorn = pytest.importorskip("uvicorn")
    monkeypatch.setenv("TAGRPO_TOKEN", TOKEN)
    reached = []

    async def application(scope, receive, send):
        assert scope["type"] == "http"
        reached.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode()})

    config = uvicorn.Config(
        RequireToken(application), host="127.0.0.1", port=0, lifespan="off", log_level="error"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()
    assert reached == ["/update_weights"], "nobody else has come as far as the application"


def test_only_who_shows_the_token_gets_past_the_guard(url):
    with httpx.Client() as client:
        check_guard(client, url)


def check_guard(client, url):
    for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
        for route in (
            "/",
            "/v1/models",
            "/collective_rpc",
            "/update_weights",
            "//v1/../collective_rpc",
            "/docs",
            REPORT,
        ):
            for shown in ({}, {"Authorization": TOKEN}, {"Authorization": f"Bearer {TOKEN[:-1]}"}):
                assert client.request(method, url + route, headers=shown).status_code == 401
    answer = client.post(f"{url}/update_weights", headers={"Authorization": f"Bearer {TOKEN}"})
    assert (answer.status_code, answer.text) == (200, "/update_weights")


def test_whoever_starts_first_makes_the_token_and_all_others_find_it(monkeypatch, tmp_path):
    monkeypatch.delenv("TAGRPO_TOKEN")
    monkeypatch.setattr(access, "FILE", tmp_path / "cache" / "token")
    found = []
    threads = [threading.Thread(target=lambda: found.append(shared_token())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found[0]) == 64
    assert stat.S_IMODE(access.FILE.stat().st_mode) == 0o600
    assert [path.name for path in access.FILE.parent.iterdir()] == ["token"]


def test_a_token_that_others_can_read_or_guess_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("TAGRPO_TOKEN", "short")
    with pytest.raises(ValueError, match="TAGRPO_TOKEN"):
        shared_token()
    monkeypatch.delenv("TAGRPO_TOKEN")
    monkeypatch.setattr(access, "FILE", tmp_path / "token")
    (tmp_path / "token").write_text("x" * 64)
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(PermissionError, match="chmod 600"):
        shared_token()
