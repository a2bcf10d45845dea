"""vLLM servers on devices of their own; weights go from the trainer's memory into theirs, never through files.

Every response comes back with the version of the weights that sampled it, which the server keeps beside the weights. A
server that was killed and started again has none, so that its responses are recognised, thrown away, and sampled again
once it has the current weights.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
import torch
from torch import Tensor

from ...distributed import gather_objects, rank
from ...types import Completion, Deliver, Finish, SamplingConfig, ignore
from .base import EngineError, check_context, in_thread
from .server_weights import Server, nccl_transfer, stream_transfer
from .transformers import stop_token_ids


@dataclass
class _Request:
    """Some samples of one prompt; `first` is the number of the first one."""

    prompt: int
    first: int
    count: int
    completions: list[Completion] = field(default_factory=list)


class VLLMServerEngine:
    """Samples from one or several vLLM servers, started with `python -m tagrpo.rollouts.engines.serve`.

    Under several ranks each samples its own prompts; rank 0 alone holds a copy of the weights in host memory and sends
    them. `sync` and `generate` are collective.

    A server that does not answer is asked again, at most `retries` times in a row, and left out while another one
    works. When none is left for `patience` seconds, every rank raises.

    Args:
        model_path: Folder or hub name, for the stop tokens.
        url: Of one server or of several with the same model, such as `http://10.0.0.7:8000`.
        dtype: Type in which weights travel; that of the server.
        transfer: `stream` sends over TCP and works everywhere; `nccl` sends from GPU to GPU and needs a server that was
            started with `--nccl`.
        samples_per_request: Samples of one prompt that travel together; fewer are scored earlier, more cost less.
        concurrency: Requests of one rank under way at one time.
        timeout: Seconds that one request may take, sampling and sending of weights included.
        retries: How often what failed is tried again.
        patience: Seconds to wait for a server that is being started.

    Raises:
        ValueError: no URL, or an option out of its range.
    """

    def __init__(
        self,
        model_path: str,
        url: str | Sequence[str],
        dtype: str = "bfloat16",
        transfer: Literal["stream", "nccl"] = "stream",
        samples_per_request: int = 8,
        concurrency: int = 64,
        timeout: float = 1800.0,
        retries: int = 3,
        patience: float = 600.0,
    ) -> None:
        urls = [url] if isinstance(url, str) else list(url)
        if not urls or not all(urlsplit(u).hostname for u in urls) or transfer not in ("stream", "nccl"):
            raise ValueError(
                "Expected rollout.engine.url such as http://localhost:8000, or a list, and transfer stream or nccl, "
                f"but got {url!r} and {transfer!r}. Start a server with `python -m tagrpo.rollouts.engines.serve`."
            )
        if min(samples_per_request, concurrency) < 1 or retries < 0 or min(timeout, patience) <= 0:
            raise ValueError(
                "Expected samples_per_request and concurrency ≥ 1, retries ≥ 0 and positive timeout and patience, "
                f"but got {samples_per_request}, {concurrency}, {retries}, {timeout} and {patience}. "
                "Correct rollout.engine."
            )
        self.servers = [Server(u.rstrip("/"), timeout) for u in urls]
        self.stop_ids = stop_token_ids(model_path)
        self.dtype = getattr(torch, dtype)
        self.transfer = stream_transfer if transfer == "stream" else nccl_transfer
        self.samples_per_request = samples_per_request
        self.concurrency = concurrency
        self.retries = retries
        self.patience = patience
        self.run = gather_objects(uuid.uuid4().hex)[0]
        self.syncs = 0
        self.context = 0
        self.weights: list[tuple[str, Tensor]] = []
        self.ready: list[int] = []

    @property
    def version(self) -> str:
        """What a server with the current weights calls them; no other run uses the same names."""
        return f"{self.run}-{self.syncs}"

    # ------------------------------------------------------------------ weights

    def sync(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Gather the weights on rank 0, tensor by tensor, and send them to every server."""
        self.syncs += 1
        self.weights = []
        for name, tensor in parameters:
            if rank() == 0:
                self.weights.append((name, tensor.detach().to("cpu", self.dtype, copy=True).contiguous()))
        self._prepare()

    def _prepare(self) -> None:
        """Rank 0 brings the current weights into every server that answers; all ranks learn which these are."""
        ready: list[int] = []
        context, failure = 0, ""
        if rank() == 0:
            try:
                ready = self._prepared()
                context = min(self.servers[number].context for number in ready)
            except (httpx.HTTPError, EngineError) as error:
                failure = str(error)
        self.ready, self.context, failure = gather_objects((ready, context, failure))[0]
        if failure:
            raise EngineError(failure)

    def _prepared(self) -> list[int]:
        """Numbers of the servers that hold the current weights, one at least."""
        deadline = time.monotonic() + self.patience
        failures = 0
        while True:
            with ThreadPoolExecutor(len(self.servers)) as threads:
                states = list(threads.map(self._bring_up_to_date, self.servers))
            ready = [number for number, state in enumerate(states) if state is None]
            if ready:
                return ready
            # A server that answers and fails is not about to start: it counts against `retries`, not `patience`.
            failures += any(server.answers for server in self.servers)
            if failures > self.retries or time.monotonic() > deadline:
                raise EngineError(
                    f"Expected a vLLM server that takes the weights, but after {failures} failed attempts and "
                    f"{self.patience - deadline + time.monotonic():.0f} s there is none: "
                    + "; ".join(f"{s.url}: {state}" for s, state in zip(self.servers, states, strict=True))
                    + ". Start one with `python -m tagrpo.rollouts.engines.serve` and check rollout.engine.url."
                )
            time.sleep(min(2.0, self.patience / 10))

    def _bring_up_to_date(self, server: Server) -> str | None:
        """None when `server` holds the current weights, else why it does not."""
        server.answers = False
        try:
            held = server.version
            server.answers = True
            if held != self.version:
                server.exchange_weights(self.transfer, self.weights, self.version)
        except (httpx.HTTPError, OSError, EngineError) as error:
            return f"{type(error).__name__}: {error}"
        return None

    # ------------------------------------------------------------------ samples

    def generate(
        self,
        prompts: Sequence[Tensor],
        num_samples: Sequence[int],
        sampling: SamplingConfig,
        seed: int,
        deliver: Deliver = ignore,
    ) -> list[list[Completion]]:
        """See `RolloutEngine.generate`. Log-probs are those of the truncated distribution under top-p or top-k.

        Each sample has a seed of its own, so that it matters neither which server draws it nor beside which others,
        beyond the rounding of that batch.
        """
        return self._begin(prompts, num_samples, sampling, seed, deliver, beside=False)()

    def begin(
        self,
        prompts: Sequence[Tensor],
        num_samples: Sequence[int],
        sampling: SamplingConfig,
        seed: int,
        deliver: Deliver = ignore,
    ) -> Finish:
        """See `AheadEngine.begin`. What fails meanwhile is tried again by `Finish`, on all ranks together."""
        return self._begin(prompts, num_samples, sampling, seed, deliver, beside=True)

    def _begin(
        self,
        prompts: Sequence[Tensor],
        num_samples: Sequence[int],
        sampling: SamplingConfig,
        seed: int,
        deliver: Deliver,
        *,
        beside: bool,
    ) -> Finish:
        check_context(prompts, sampling, self.context)
        requests = [
            _Request(p, first, min(self.samples_per_request, count - first))
            for p, count in enumerate(num_samples)
            for first in range(0, count, self.samples_per_request)
        ]
        collector = _Collector(num_samples, deliver)

        def attempt(requests: Sequence[_Request]) -> tuple[list[_Request], str]:
            return self._round(requests, prompts, sampling, seed, collector)

        first_attempt = in_thread(attempt, requests) if beside else partial(attempt, requests)

        def finish() -> list[list[Completion]]:
            failed, failure = first_attempt()
            for _ in range(self.retries):
                if not any(gather_objects(len(failed))):
                    break
                self._prepare()
                failed, failure = attempt(failed)
            left = gather_objects((len(failed), failure))
            if any(count for count, _ in left):
                raise EngineError(
                    f"Expected responses to all prompts, but {sum(count for count, _ in left)} requests failed "
                    f"{self.retries + 1} times, last with: {next(failure for _, failure in left if failure)}. "
                    "Look at the server's log."
                )
            return collector.results()

        return finish

    def _round(
        self,
        requests: Sequence[_Request],
        prompts: Sequence[Tensor],
        sampling: SamplingConfig,
        seed: int,
        collector: _Collector,
    ) -> tuple[list[_Request], str]:
        """Try `requests` once, spread over the servers that are ready; those that failed, and the last reason."""

        def attempt(index: int) -> str | None:
            request = requests[index]
            server = self.servers[self.ready[index % len(self.ready)]]
            body = self._body(request, prompts[request.prompt], sampling, seed)
            try:
                choices = server.post("/inference/v1/generate", body)["choices"]
                completions = [self._completion(c) for c in sorted(choices, key=lambda c: c["index"])]
                request.completions = completions * (request.count // len(completions))
            except (httpx.HTTPError, OSError, EngineError, _StaleWeightsError) as error:
                return f"{server.url}: {type(error).__name__}: {error}"
            collector.add(request)
            return None

        with ThreadPoolExecutor(min(self.concurrency, max(len(requests), 1))) as threads:
            failures = list(threads.map(attempt, range(len(requests))))
        failed = [request for request, failure in zip(requests, failures, strict=True) if failure is not None]
        return failed, next((failure for failure in reversed(failures) if failure), "")

    def _body(self, request: _Request, prompt: Tensor, sampling: SamplingConfig, seed: int) -> dict[str, Any]:
        # vLLM adds the number of the sample within its request.
        of_prompt = hash((seed, request.prompt)) % 2**62
        return {
            "token_ids": prompt.tolist(),
            "sampling_params": {
                # vLLM refuses more copies of the one greedy response.
                "n": request.count if sampling.temperature else 1,
                "seed": of_prompt + request.first,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "max_tokens": sampling.max_new_tokens,
                "stop_token_ids": self.stop_ids,
                "logprobs": 0,
                "detokenize": False,
            },
        }

    def _completion(self, choice: dict[str, Any]) -> Completion:
        versions = {span["version"] for span in choice.get("weight_versions") or ()}
        if versions != {self.version} or choice["finish_reason"] not in ("stop", "length"):
            raise _StaleWeightsError(
                f"expected a finished response of weights {self.version}, but it is of {sorted(versions)} and ended by "
                f"{choice['finish_reason']}"
            )
        return Completion(
            token_ids=torch.tensor(choice["token_ids"], dtype=torch.long),
            logprobs=torch.tensor([entry["logprob"] for entry in choice["logprobs"]["content"]], dtype=torch.float32),
            truncated=choice["finish_reason"] == "length",
        )

    def close(self) -> None:
        """Drop connections and the copy of the weights; the servers go on."""
        for server in self.servers:
            server.client.close()
        self.weights = []


class _StaleWeightsError(Exception):
    """A response that was not sampled by the current weights from its first token to its last."""


class _Collector:
    """Puts requests back together; hands each prompt to `deliver` when its last sample is there."""

    def __init__(self, num_samples: Sequence[int], deliver: Deliver) -> None:
        self.parts: list[dict[int, list[Completion]]] = [{} for _ in num_samples]
        self.missing = list(num_samples)
        self.deliver = deliver
        self.lock = threading.Lock()

    def add(self, request: _Request) -> None:
        with self.lock:
            self.parts[request.prompt][request.first] = request.completions
            self.missing[request.prompt] -= request.count
            if not self.missing[request.prompt]:
                self.deliver(request.prompt, self.of_prompt(request.prompt))

    def of_prompt(self, prompt: int) -> list[Completion]:
        parts = self.parts[prompt]
        return [completion for first in sorted(parts) for completion in parts[first]]

    def results(self) -> list[list[Completion]]:
        return [self.of_prompt(prompt) for prompt in range(len(self.parts))]
