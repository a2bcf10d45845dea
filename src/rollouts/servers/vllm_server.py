"""Engine that samples on vLLM servers with devices of their own; weights are sent without files.

Every response comes with the version of the weights that sampled it, which the server keeps beside the
weights. Replies are checked (`server_replies`). If a reply breaks the contract, another server gets the
request, as if the first server had died. A server that was killed and started again has no such version. Its
responses are discarded, and sampled again once the server has the current weights.

A request is sent to another server at once if its connection breaks, and within 60 s if its server hangs: two
failed probes in a row end all requests to a server. While probes are answered, a request may take as long as
`timeout`. A server that has used all of that time gets requests only after the other servers, until the next
sync.
"""

import logging
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

import httpx
from torch import Tensor

from ...distributed import gather_objects, rank
from ...foreign import ForeignDataError
from ...runs.preemption import asked_to_stop
from ...seeds import derive_seed
from ...types import Completion, Deliver, Finish, Request, ignore
from ...types.checks import EndOfRun, float_dtype
from ..engines.base import (
    EngineError,
    ServerEngine,
    check_context,
    in_thread,
    stop_token_ids,
    vllm_sampling,
    vocabulary_size,
)
from ..transfer.flags import START
from .access import shared_token
from .server_calls import FAILURES, Json, VLLMServer, listed
from .server_replies import Asked, read_generated

LOG = logging.getLogger(__name__)
MOST_SAMPLES = 64
"""Most samples of one request: vLLM refuses more than its `max_num_seqs`."""
ROUTE = "/inference/v1/generate"
"""Route that samples: tokens in, tokens out."""
PROBE_EVERY = 5.0
"""Seconds between probes of a server that is sampling."""


class VLLMServerEngine(ServerEngine):
    """Engine that samples from one or several vLLM servers.

    Start each server with the flags that `python -m tagrpo.rollouts.transfer.flags` prints; a server that lacks
    one is not used. Weights travel by the backend of the server's `--weight-transfer-config`: `nccl` between
    GPUs, `tcp` otherwise.

    Every rank samples its own prompts. `sync`, `generate` and the function that `generate_async` returns are
    collective. Only rank 0 keeps a copy of the weights, in host memory, and sends it to the servers. Only
    rank 0 looks up the servers, at each sync and while no server is ready. Each request is sent to the least
    busy server. A server that has failed gets no requests until weights are sent again. A request that has
    failed on all servers is repeated at most `retries` times, and once more if a hanging server has used up
    the other servers' time. If no server answers for `patience` seconds, every rank raises an `EngineError`.

    Args:
        model_path: Folder or hub name, for the stop tokens.
        url: A server's URL, such as `http://10.0.0.7:8000`; `file:/shared/servers.txt`, a file with one URL
            per line; `dns:http://workers:8000`, all addresses of a host name; or a list of these. Files and
            names are read again at each sync, and while no server is ready.
        dtype: Type of the weights that are sent, which must be the server's.
        concurrency: Largest number of concurrent HTTP requests of one rank, each for samples of one prompt.
        timeout: Seconds for one request, on all servers that it is sent to, or for one transfer of weights.
        retries: How often failed requests, or a transfer of weights that a server refuses, are repeated.
        patience: Seconds to wait for a server that is being started.
        check_weights: Whether check sums of the server's weights are compared with those sent, at each transfer.
    """

    asynchronous = True

    def __init__(
        self,
        model_path: str,
        url: str | Sequence[str],
        dtype: str = "bfloat16",
        concurrency: int = 64,
        timeout: float = 1800.0,
        retries: int = 3,
        patience: float = 600.0,
        check_weights: bool = False,
    ) -> None:
        urls = [url] if isinstance(url, str) else list(url)
        if not urls or not all(
            u.startswith("file:") or urlsplit(u.removeprefix("dns:")).hostname for u in urls
        ):
            raise ValueError(
                "Expected rollout.engine.url such as http://localhost:8000, file:/shared/servers.txt or "
                f"dns:http://workers:8000, or a list, but got {url!r}. {START}"
            )
        if concurrency < 1 or retries < 0 or min(timeout, patience) <= 0:
            raise ValueError(
                "Expected rollout.engine with concurrency ≥ 1, retries ≥ 0 and positive timeout and "
                f"patience, but got {concurrency}, {retries}, {timeout} and {patience}."
            )
        self.dtype = float_dtype(dtype, "rollout.engine.dtype")
        self.entries, self.concurrency = urls, concurrency
        self.timeout, self.retries, self.patience = timeout, retries, patience
        self.check_weights = check_weights
        self.token = gather_objects(shared_token())[0]
        self.stop_ids = stop_token_ids(model_path)
        self.vocabulary = vocabulary_size(model_path)
        self.contexts: dict[str, int] = {}  # URL of each ready server → its longest prompt and response
        self.overdue: set[str] = set()  # URLs of the servers that have used up `timeout` since the last sync
        self.version = "none"  # of the weights; no other run has the same
        self.weights: dict[str, Tensor] = {}
        self.groups: dict[str, Any] = {}  # URL → `NcclGroup` that weights are broadcast in
        # those that are ready: the same on every rank, in its own order
        self.servers: dict[str, VLLMServer] = {}
        self.choosing = threading.Lock()

    def sync(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Gather the weights on rank 0, tensor by tensor, and send them to every server."""
        self.version = gather_objects(uuid.uuid4().hex)[0]
        self.weights = {}
        self.overdue = set()
        for name, tensor in parameters:
            if rank() == 0:
                self.weights[name] = tensor.detach().to(self.dtype).to("cpu", copy=True).contiguous()
        self._prepare()

    def _prepare(self) -> None:
        """Send the current weights to every server that answers, and tell all ranks which do. Collective.

        Raises:
            EngineError: on every rank, if no server answers.
            EndOfRun: if rank 0 was asked to stop while it waited.
        """
        ready, failure = gather_objects(self._prepared() if rank() == 0 else ({}, ""))[0]
        if failure:
            raise EngineError(failure)
        if not ready:
            raise EndOfRun(0)
        self.contexts = ready
        first = rank() % len(ready)  # ranks with few requests begin with different servers
        self.servers = self._servers([*ready][first:] + [*ready][:first])

    def _servers(self, urls: Sequence[str]) -> dict[str, VLLMServer]:
        return {
            url: VLLMServer(url, self.timeout, self.token, self.groups, self.check_weights) for url in urls
        }

    def _prepared(self) -> tuple[dict[str, int], str]:
        """Send weights until a server has them, and return ready URL → context, and an error message.

        The message is empty on success. Both are empty if the run was asked to stop.
        """
        began, failures, said, weights = time.monotonic(), 0, "", list(self.weights.items())
        while not asked_to_stop():
            urls: list[str] = []
            states: dict[str, str] = {}
            for entry in self.entries:
                try:
                    urls += listed(entry)
                except (OSError, ValueError) as error:  # the latter of a port that is no number
                    states[entry] = str(error)
            servers = self._servers(urls)
            with ThreadPoolExecutor(max(len(servers), 1)) as threads:
                found = threads.map(
                    lambda server: server.failure_to_hold(self.version, send=weights), servers.values()
                )
                states |= zip(servers, found, strict=True)
            if ready := {url: server.context for url, server in servers.items() if not states[url]}:
                for url, server in servers.items():
                    if states[url] and server.answers:
                        LOG.warning("Going on without %s until the next sync: %s", url, states[url])
                return ready, ""
            reasons = "; ".join(f"{where}: {why}" for where, why in states.items())
            waited = time.monotonic() - began
            # A server that answers and fails is not about to start: it counts against `retries`, not
            # `patience`.
            failures += any(server.answers for server in servers.values())
            if failures > self.retries or waited > self.patience:
                return {}, (
                    f"Expected a vLLM server that takes the weights, but after {failures} failed attempts "
                    f"(rollout.engine.retries) and {waited:.0f} s (rollout.engine.patience) there is none: "
                    f"{reasons}. {START} Check rollout.engine.url."
                )
            if reasons != said:
                said, limit = reasons, f"{self.patience:.0f} s (rollout.engine.patience)"
                LOG.warning("Waiting up to %s for a vLLM server: %s", limit, said)
            time.sleep(min(1.0, self.patience / 10))
        return {}, ""

    def generate(self, request: Request, deliver: Deliver = ignore) -> list[list[Completion]]:
        """Sample as `Engine.generate` does.

        Log-probs are those of the truncated distribution under top-p or top-k. Each sample has a seed of its
        own, so that it does not matter which server draws it.
        """
        return self.generate_async(request, deliver)()

    def generate_async(self, request: Request, deliver: Deliver = ignore) -> Finish:
        """Start `generate` in the background; `Finish` retries failed requests, on all ranks together."""
        check_context(request, max(self.contexts.values(), default=0))
        results: list[list[Completion]] = [[] for _ in request.prompts]
        wanted = [prompt for prompt, count in enumerate(request.num_samples) if count]
        first_attempt = in_thread(self._attempt, request, results, deliver, wanted)

        def finish() -> list[list[Completion]]:
            failures = first_attempt()
            attempts = 1
            for attempt in range(self.retries + 1):
                if not any(gather_objects(len(failures))):
                    break
                if attempt == self.retries and not any(gather_objects(self._has_spared())):
                    break
                self._prepare()
                attempts += 1
                failures = self._attempt(request, results, deliver, list(failures))
            if left := list(chain(*gather_objects(list(failures.values())))):
                raise EngineError(
                    f"Expected responses to all prompts, but {len(left)} requests failed {attempts} "
                    f"times, last with: {left[-1]}. Look at the server's log."
                )
            return results

        return finish

    def _has_spared(self) -> bool:
        """Return whether a request used up its time at one server, leaving too little for other servers."""
        ready = {server.url for server in self.servers.values() if not server.state}
        return bool(self.overdue) and not ready <= self.overdue

    def _attempt(
        self, request: Request, results: list[list[Completion]], deliver: Deliver, wanted: Sequence[int]
    ) -> dict[int, str]:
        """Ask each ready server at most once for the prompts `wanted`; return failed prompt → reason."""
        one_at_a_time = threading.Lock()

        def answer(prompt: int) -> str | None:
            completions: list[Completion] = []
            try:
                while (left := request.num_samples[prompt] - len(completions)) > 0:
                    count = min(left, MOST_SAMPLES)
                    params = vllm_sampling(request.sampling, count, self.stop_ids)
                    # vLLM adds the index of each sample within the request.
                    params["seed"] = derive_seed(request.seed, prompt) + len(completions)
                    body = {"token_ids": request.prompts[prompt].tolist(), "sampling_params": params}
                    asked = Asked(
                        num_samples=params["n"],
                        max_new_tokens=request.sampling.max_new_tokens,
                        vocabulary=self.vocabulary,
                        stop_ids=self.stop_ids,
                        version=self.version,
                        random=request.sampling.temperature > 0,
                    )
                    drawn = self._ask(body, asked, completions)
                    completions += drawn if asked.random else drawn * count
            except EngineError as error:
                return str(error)
            results[prompt] = completions
            with one_at_a_time:
                deliver(prompt, results[prompt])
            return None

        done = threading.Event()
        for server in self.servers.values():
            threading.Thread(target=self.watch, args=(server, done), daemon=True).start()
        try:
            with ThreadPoolExecutor(min(self.concurrency, max(len(wanted), 1))) as threads:
                failures = zip(wanted, threads.map(answer, wanted), strict=True)
                return {prompt: failure for prompt, failure in failures if failure is not None}
        finally:
            done.set()

    def _ask(self, body: Json, asked: Asked, earlier: Sequence[Completion]) -> list[Completion]:
        """Ask the least busy server, and the next one if it fails or its reply does not match.

        Args:
            body: The request.
            asked: Contents of the request, which a reply must match.
            earlier: Responses to earlier requests for the same prompt.

        Raises:
            EngineError: if all servers fail. The message has the reason of each.
        """
        length = len(body["token_ids"]) + asked.max_new_tokens
        failed: dict[str, str] = {}
        for url, context in self.contexts.items():
            if context < length:
                failed[url] = f"its context of {context} tokens is too short for {length}"
        began = time.monotonic()
        while left := [
            server for server in self.servers.values() if not server.state and server.url not in failed
        ]:
            with self.choosing:
                server = min(left, key=lambda server: (server.url in self.overdue, server.under_way))
                server.under_way += 1
            try:
                rest = max(began + self.timeout - time.monotonic(), 0.001)
                reply = server.post(ROUTE, body, rest, most=asked.most_bytes)
                return read_generated(reply, asked, f"the reply of {server.url}{ROUTE}", earlier)
            except FAILURES as error:
                failed[server.url] = server.why(error)
                # The next server may have got too little time to be blamed.
                if isinstance(error, httpx.TimeoutException) and rest > self.timeout / 2:
                    self.overdue.add(server.url)
                if isinstance(error, ForeignDataError) and not server.distrusted:
                    server.distrusted = True
                    LOG.warning("Asking other servers again what %s got wrong: %s", server.url, error)
            finally:
                with self.choosing:
                    server.under_way -= 1
        raise EngineError(
            "; ".join(f"{url}: {failed.get(url, server.state)}" for url, server in self.servers.items())
        )

    def watch(self, server: VLLMServer, done: threading.Event) -> None:
        """Probe a busy server until `done`, and give the server up after two failures in a row."""
        before = ""
        while not done.wait(PROBE_EVERY):
            why = server.state or server.failure_to_hold(self.version)
            if before and why and not done.is_set():
                if not server.state:
                    LOG.warning("Going on without %s until the next sync: %s", server.url, why)
                server.give_up(why)
            before = why

    def close(self) -> None:
        """Drop connections and the copy of the weights; the servers keep running."""
        for server in self.servers.values():
            server.give_up("the engine is closed")
        for group in self.groups.values():
            group.close()
        self.weights = {}
