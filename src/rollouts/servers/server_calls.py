"""One vLLM server: its address, calls to it, and the transfer of weights.

A server that hangs during a transfer of weights is given up within 60 s; a moving transfer may take
`timeout`.
"""

import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import httpx
import torch

from ...foreign import ForeignDataError, read_json
from ..engines.base import EngineError
from ..engines.weight_stream import Weights
from ..transfer.flags import GUARD, REPORT, START, FlagReport
from ..transfer.sender import WeightSender
from .access import FILE, VARIABLE
from .server_replies import REMEDY, Models, WeightInfo

T = TypeVar("T")
Json = dict[str, Any]
PROBE_SECONDS = 15.0
"""Time limit of a probe; the engine answers between two steps."""
CONTROL_SECONDS = 45.0
"""Time limit of calls that neither sample nor move weights, and of a pause in a transfer of weights."""
CONTROL_BYTES = 1 << 20
"""Size of the largest reply to calls that do not sample."""
TOKEN = f"Its token is another one: set {VARIABLE} to the same value for the server and all ranks, or copy {FILE}."
HINTS = {401: TOKEN, 403: START, 404: f"It lacks `{GUARD}`, or is not vLLM. {START}"}
FAILURES = (httpx.HTTPError, httpx.InvalidURL, OSError, EngineError, ForeignDataError)  # of calls to a server


def listed(entry: str) -> list[str]:
    """Return the URLs of the servers that an entry of `rollout.engine.url` names now.

    Raises:
        OSError: if the entry names no server.

    >>> listed("http://10.0.0.7:8000/"), listed("dns:http://127.0.0.1:8000")
    (['http://10.0.0.7:8000'], ['http://127.0.0.1:8000'])
    """
    kind, _, rest = entry.partition(":")
    if kind == "file":
        lines = (
            line.partition("#")[0].strip(" /\t") for line in Path(rest).expanduser().read_text().splitlines()
        )
        if urls := list(filter(None, lines)):
            return urls
        raise OSError("it lists no server")
    if kind == "dns":
        where = urlsplit(rest)
        found = socket.getaddrinfo(where.hostname, where.port or where.scheme, type=socket.SOCK_STREAM)
        ends = sorted((str(end[0]), int(end[1])) for *_, end in found)
        return [f"{where.scheme}://{f'[{host}]' if ':' in host else host}:{port}" for host, port in ends]
    return [entry.rstrip("/")]


class _Deadline:
    """A time limit for a `with` block: its connections end after `seconds`, however slowly bytes arrive.

    The block then raises httpx.ReadTimeout. `sockets` gets the newest connection of each thread.
    """

    def __init__(self, seconds: float, sockets: dict[int, socket.socket]) -> None:
        self.seconds, self.sockets = seconds, sockets
        self.passed = threading.Event()
        self.opened: list[socket.socket] = []
        self.timer = threading.Timer(seconds, self._end)
        self.timer.daemon = True

    def __enter__(self) -> Self:
        self.timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self.timer.cancel()
        if self.passed.is_set() and isinstance(error, httpx.HTTPError | OSError):
            raise httpx.ReadTimeout(f"no complete reply within {self.seconds:.0f} s") from error

    def note_socket(self, event: str, details: Mapping[str, Any]) -> None:
        """Record a connection that httpx has opened; passed to httpx as `trace`."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            connection = details["return_value"].get_extra_info("socket")
            self.sockets[threading.get_ident()] = connection
            self.opened.append(connection)
            if self.passed.is_set():
                self._end()

    def _end(self) -> None:
        self.passed.set()
        for connection in list(self.opened):
            shut_down(connection)


def shut_down(connection: socket.socket) -> None:
    """End a connection, so that every thread that waits for it fails at once."""
    with suppress(OSError):  # it has been closed
        connection.shutdown(socket.SHUT_RDWR)


class VLLMServer:
    """Client of one vLLM server.

    A call raises EngineError if the server refuses it, ForeignDataError if the reply breaks the contract, and
    another error of `FAILURES` if the server is gone or fails.
    """

    def __init__(
        self,
        url: str,
        timeout: float,
        token: str,
        groups: dict[str, Any] | None = None,
        check: bool = False,
    ) -> None:
        self.url = url
        self.timeout = timeout
        self.limit = min(CONTROL_SECONDS, timeout)
        self.groups = {} if groups is None else groups  # URL → `NcclGroup`, kept between transfers
        self.check = check  # whether check sums are compared after a transfer
        self.answers = False
        self.distrusted = False  # whether a reply of it has broken its contract
        self.state = ""  # why it gets no more requests; empty while it holds the current weights
        self.context = 0
        self.under_way = 0
        self.sockets: dict[int, socket.socket] = {}  # by thread
        self.client = httpx.Client(
            # Compressed replies could be of any size.
            headers={"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"},
            # A connection for each request: kept ones are dead after a restart or an error of the server.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            trust_env=False,  # no proxy between trainer and engine
        )

    def get(self, path: str, kind: type[T]) -> T:
        """Send a GET within `PROBE_SECONDS`, and return the JSON reply as a `kind`."""
        reply = self.post(path, None, PROBE_SECONDS, "GET")
        return read_json(kind, reply, source=f"the reply of {self.url}{path}", remedy=REMEDY)

    def post(
        self,
        path: str,
        body: Json | None = None,
        timeout: float | None = None,
        method: str = "POST",
        most: int = CONTROL_BYTES,
    ) -> bytes:
        """Send a request, with JSON if given, and return the body of the reply.

        Args:
            path: Route.
            body: JSON to send; None for no body.
            timeout: Seconds until the reply is complete, at most `self.timeout`; None is `CONTROL_SECONDS`.
            method: HTTP method.
            most: Size of the largest accepted reply, in bytes.

        Raises:
            EngineError: if the server refuses the request, or its reply is larger than `most`.
            httpx.HTTPError: if the server is gone, fails, or takes too long.
        """
        seconds = min(timeout or CONTROL_SECONDS, self.timeout)
        # of each read; the deadline is that of all reads
        limits = httpx.Timeout(seconds, connect=min(seconds, 10.0))
        with (
            _Deadline(seconds, self.sockets) as deadline,
            self.client.stream(
                method, self.url + path, json=body, timeout=limits, extensions={"trace": deadline.note_socket}
            ) as response,
        ):
            content = bytearray()
            for chunk in response.iter_raw():
                content += chunk
                if len(content) > most:
                    raise EngineError(
                        f"Expected {self.url}{path} to reply with at most {most} bytes, but got more."
                    )
        if 400 <= response.status_code < 500:
            said = bytes(content[:500]).decode(errors="replace")
            raise EngineError(
                f"Expected {response.request.url} to accept the request, but it answered "
                f"{response.status_code}: {said!r}. {HINTS.get(response.status_code, '')}"
            )
        response.raise_for_status()
        return bytes(content)

    def give_up(self, why: str) -> None:
        """Send the server no more requests, and make running requests fail at once, in all threads."""
        self.state = self.state or why
        for connection in list(self.sockets.values()):
            shut_down(connection)

    def why(self, error: Exception) -> str:
        """Return the error of a failed call as a text, after the reason if the server was given up."""
        return ": ".join(filter(None, (self.state, type(error).__name__, str(error))))

    def failure_to_hold(self, version: str, send: Weights | None = None) -> str:
        """Check that the server holds weights `version`, after sending `send` if given.

        Returns an error message, empty on success.
        """
        try:
            if send is not None:
                report = self.check_flags()
            held = self.get("/weight_info", WeightInfo).weight_version
            self.answers = True
            if send is not None:
                if held != version:
                    self.exchange_weights(send, version, held, report)
                    held = self.get("/weight_info", WeightInfo).weight_version
                self.post("/resume")
                self.context = self.get("/v1/models", Models).data[0].max_model_len
        except FAILURES as error:
            return self.why(error)
        return "" if held == version else f"it holds the weights {held[:80]!r}"

    def check_flags(self) -> FlagReport:
        """Return what the server says about its flags, if it has all and a backend that the trainer can use.

        Raises:
            EngineError: if it lacks a flag or has another backend.
        """
        report = self.get(REPORT, FlagReport)
        self.answers = True
        if report.lacking:
            raise EngineError(
                f"Expected {self.url} to have all flags, but it lacks {', '.join(report.lacking)}. {START}"
            )
        usable = ["tcp", "nccl"] if torch.cuda.is_available() else ["tcp"]
        if report.backend not in usable:
            raise EngineError(
                f"Expected {self.url} to have --weight-transfer-config with a backend of {usable}, as the trainer has, "
                f"but got {report.backend!r}. {START}"
            )
        return report

    def exchange_weights(self, weights: Weights, version: str, held: str, report: FlagReport) -> None:
        """Stop sampling, let the workers receive the weights, and clear the cache of prefixes.

        Until the weights are complete and the cache is empty, the server reports their version as
        "unfinished". The caller has it resume.

        Args:
            weights: Names and tensors on the CPU.
            version: Version of the weights.
            held: Version that the server holds.
            report: Backend and number of workers of the server.
        """
        self.post("/update_weight_version", {"new_version": "unfinished"})
        self.post("/pause?mode=abort")
        sender = WeightSender(self, version)
        if report.backend == "nccl":
            sender.broadcast(weights, held, report.workers)
        else:
            sender.stream(weights)
        if self.check:
            sender.compare_sums(weights)
