"""vLLM servers on devices of their own; weights go from the trainer's memory to theirs, never through files.

Every response comes back with the version of the weights that sampled it, which the server keeps beside the weights. A
server that was killed and started again has no such version: its responses are thrown away, and sampled again once it
holds the current weights.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor

from ...distributed import gather_objects
from ...seeds import derive_seed
from ...types import Completion, Deliver, Engine, Finish, Request, ignore
from .base import EngineError, check_context, in_thread, stop_token_ids, vllm_sampling
from .server_fleet import START, ServerFleet

MOST_SAMPLES = 64
"""Most samples of one request: vLLM refuses more than its `max_num_seqs`."""


class VLLMServerEngine(Engine):
    """Samples from one or several vLLM servers, started with `python -m tagrpo.rollouts.engines.serve`.

    Under several ranks each samples its own prompts; `sync`, `generate` and what `generate_async` returns are
    collective. Each request goes to the least busy server, and to another one at once when its connection breaks, or
    within 60 s when the server hangs; the failed server is left out until weights are sent again. A request that has
    failed on all servers is tried again, at most `retries` times. When no server answers for `patience` seconds, every
    rank raises.

    Args:
        model_path: Folder or hub name, for the stop tokens.
        url: A server's URL, such as `http://10.0.0.7:8000`; `file:/shared/servers.txt`, a file with one URL a line;
            `dns:http://workers:8000`, all addresses of a host name; or a list of these. Files and names are read again
            at each sync, and while no server is ready.
        dtype: Type of the weights that are sent; the same as the server's.
        concurrency: Most HTTP requests of one rank at a time, each for samples of one prompt.
        timeout: Seconds for one request, including its moves to other servers, or for one transfer of weights.
        retries: How often failed requests, or a transfer of weights that a server refuses, are tried again.
        patience: Seconds to wait for a server that is being started.
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
    ) -> None:
        urls = [url] if isinstance(url, str) else list(url)
        if not urls or not all(u.startswith("file:") or urlsplit(u.removeprefix("dns:")).hostname for u in urls):
            raise ValueError(
                "Expected rollout.engine.url such as http://localhost:8000, file:/shared/servers.txt or "
                f"dns:http://workers:8000, or a list, but got {url!r}. {START}"
            )
        if concurrency < 1 or retries < 0 or min(timeout, patience) <= 0:
            raise ValueError(
                "Expected rollout.engine with concurrency ≥ 1, retries ≥ 0 and positive timeout and patience, "
                f"but got {concurrency}, {retries}, {timeout} and {patience}."
            )
        self.fleet = ServerFleet(urls, getattr(torch, dtype), timeout, retries, patience)
        self.stop_ids = stop_token_ids(model_path)
        self.concurrency = concurrency
        self.retries = retries

    def sync(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Gather the weights on rank 0, tensor by tensor, and send them to every server."""
        self.fleet.sync(parameters)

    def generate(self, request: Request, deliver: Deliver = ignore) -> list[list[Completion]]:
        """See `Engine.generate`. Log-probs are those of the truncated distribution under top-p or top-k.

        Each sample has a seed of its own: it does not matter which server draws it.
        """
        return self.generate_async(request, deliver)()

    def generate_async(self, request: Request, deliver: Deliver = ignore) -> Finish:
        """See `Engine.generate_async`. `Finish` retries the requests that have failed, on all ranks together."""
        check_context(request, self.fleet.context)
        results: list[list[Completion]] = [[] for _ in request.prompts]
        wanted = [prompt for prompt, count in enumerate(request.num_samples) if count]
        first_attempt = in_thread(self._attempt, request, results, deliver, wanted)

        def finish() -> list[list[Completion]]:
            failures = first_attempt()
            for _ in range(self.retries):
                if not any(gather_objects(len(failures))):
                    break
                self.fleet.prepare()
                failures = self._attempt(request, results, deliver, list(failures))
            if left := list(chain(*gather_objects(list(failures.values())))):
                raise EngineError(
                    f"Expected responses to all prompts, but {len(left)} requests failed {self.retries + 1} times, "
                    f"last with: {left[-1]}. Look at the server's log."
                )
            return results

        return finish

    def _attempt(
        self, request: Request, results: list[list[Completion]], deliver: Deliver, wanted: Sequence[int]
    ) -> dict[int, str]:
        """Ask each ready server at most once for responses to the prompts `wanted`; return prompt → why it failed."""
        one_at_a_time = threading.Lock()

        def ask(prompt: int) -> str | None:
            completions: list[Completion] = []
            try:
                while (left := request.num_samples[prompt] - len(completions)) > 0:
                    count = min(left, MOST_SAMPLES)
                    params = vllm_sampling(request.sampling, count, self.stop_ids)
                    # vLLM adds the index of each sample within the request.
                    params["seed"] = derive_seed(request.seed, prompt) + len(completions)
                    body = {"token_ids": request.prompts[prompt].tolist(), "sampling_params": params}
                    drawn = self.fleet.ask("/inference/v1/generate", body, self._completions)
                    completions += drawn * (count // len(drawn))
            except EngineError as error:
                return str(error)
            results[prompt] = completions
            with one_at_a_time:
                deliver(prompt, results[prompt])
            return None

        done = threading.Event()
        for server in self.fleet.servers.values():
            threading.Thread(target=self.fleet.watch, args=(server, done), daemon=True).start()
        try:
            with ThreadPoolExecutor(min(self.concurrency, max(len(wanted), 1))) as threads:
                failures = zip(wanted, threads.map(ask, wanted), strict=True)
                return {prompt: failure for prompt, failure in failures if failure is not None}
        finally:
            done.set()

    def _completions(self, answer: dict[str, Any]) -> list[Completion]:
        return [self._completion(choice) for choice in sorted(answer["choices"], key=lambda choice: choice["index"])]

    def _completion(self, choice: dict[str, Any]) -> Completion:
        """Return a finished response that the current weights sampled from first token to last; refuse any other."""
        versions = {span["version"] for span in choice.get("weight_versions") or ()}
        if versions != {self.fleet.version} or choice["finish_reason"] not in ("stop", "length"):
            raise EngineError(
                f"expected a finished response of weights {self.fleet.version}, but it is of {sorted(versions)} and "
                f"ended by {choice['finish_reason']}"
            )
        return Completion(
            token_ids=torch.tensor(choice["token_ids"], dtype=torch.long),
            logprobs=torch.tensor([entry["logprob"] for entry in choice["logprobs"]["content"]], dtype=torch.float32),
            truncated=choice["finish_reason"] == "length",
        )

    def close(self) -> None:
        """Drop connections and the copy of the weights; the servers go on."""
        self.fleet.close()
