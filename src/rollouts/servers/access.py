"""The token that vLLM servers share with their trainers, and middleware that requires it on every route.

vLLM's own `--api-key` guards sampling alone: it leaves open the routes that replace weights or call a worker,
which `VLLM_SERVER_DEV_MODE=1` adds.
"""

import os
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from ..transfer.flags import REPORT, answer_report

VARIABLE = "TAGRPO_TOKEN"
FILE = Path("~/.cache/tagrpo/token")
SHORTEST = 16


def shared_token() -> str:
    """Return the token in `TAGRPO_TOKEN` or, if this is not set, in `~/.cache/tagrpo/token`.

    The first caller creates this file.

    Raises:
        ValueError: if the token is too short to be a secret.
        PermissionError: if other users of this machine can read the file.
    """
    token = os.environ.get(VARIABLE, "").strip() or _of_file(FILE.expanduser())
    if len(token) < SHORTEST:
        raise ValueError(
            f"Expected a token of at least {SHORTEST} characters in {VARIABLE} or {FILE}, but it has "
            f"{len(token)}. Unset {VARIABLE} and delete the file: the next start makes a new one."
        )
    return token


def _of_file(path: Path) -> str:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent) as file:  # readable by this user alone
            file.write(secrets.token_hex(32))
            file.flush()
            with suppress(FileExistsError):  # another process was faster
                os.link(file.name, path)
    if path.stat().st_mode & 0o077:
        raise PermissionError(f"Expected {path} to be readable by you alone. Run `chmod 600 {path}`.")
    return path.read_text().strip()


class RequireToken:
    """ASGI middleware, for vLLM's `--middleware`, that answers 401 to requests without the token.

    The token is expected in the header `Authorization: Bearer <token>`. With it, `REPORT` is answered with the
    flags that the server lacks.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app
        self.expected = f"Bearer {shared_token()}".encode()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Pass the request on to the application, or refuse it."""
        asks = scope["type"] in ("http", "websocket")
        if not asks or secrets.compare_digest(
            dict(scope["headers"]).get(b"authorization", b""), self.expected
        ):
            if scope.get("path") == REPORT:
                await answer_report(scope["app"], send)
            else:
                await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b"Expected the token of this server."})
