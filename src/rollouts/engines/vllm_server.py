"""vLLM servers on devices of their own; weights go from the trainer's memory into theirs, never through files.

Every response comes back with the version of the weights that sampled it, which the server keeps beside the weights. A
server that was killed and started again has none: its responses are recognised, thrown away, and sampled again once it
has the current weights.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx
import torch
from torch import Tensor

from ...distributed import gather_objects
from ...seeds import derive_seed
from ...types import Completion, Deliver, Engine, Finish, Request, ignore
from .base import EngineError, check_context, in_thread, stop_token_ids, vllm_sampling
from .server_fleet import ServerFleet

MOST_SAMPLES = 64
"""Of one request: vLLM refuses more than its `max_num_seqs`."""


class VLLMServerEngine(Engine):
    """Samples from one or several vLLM servers, started with `python -m tagrpo.rollouts.engines.serve`.

    Under several ranks each samples its own prompts; `sync`, `generate` and what `generate_async` returns are
    collective. A server that does not answer is asked again, at most `retries` times in a row, and left out while
    another one works. When none is left for `patience` seconds, every rank raises. Of a policy with adapters the
    weights are sent once and then the adapters alone, for which a server keeps the weights in host memory.

    Args:
        model_path: Folder or hub name, for the stop tokens.
        url: Of one server or of several with the same model, such as `http://10.0.0.7:8000`.
        dtype: Type in which weights travel; that of the server.
        concurrency: HTTP requests of one rank under way at one time, each for samples of one prompt.
        timeout: Seconds that one request may take, sampling and sending of weights included.
        retries: How often what failed is tried again.
        patience: Seconds to wait for a server that is being started.

    Raises:
        ValueError: no URL, or an option out of its range.
    """

    asynchronous = True
    merges_adapters = True

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
        if not urls or not all(urlsplit(u).hostname for u in urls):
            raise ValueError(
                "Expected rollout.engine.url such as http://localhost:8000, or a list, "
                f"but got {url!r}. Start a server with `python -m tagrpo.rollouts.engines.serve`."
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
        """Gather the weights, or the adapters alone, on rank 0, tensor by tensor, and send them to every server."""
        self.fleet.sync(parameters)

    def generate(self, request: Request, deliver: Deliver = ignore) -> list[list[Completion]]:
        """See `Engine.generate`. Log-probs are those of the truncated distribution under top-p or top-k.

        Each sample has a seed of its own, so that it matters neither which server draws it nor beside which others,
        beyond the rounding of that batch.
        """
        return self._begin(request, deliver, in_background=False)()

    def generate_async(self, request: Request, deliver: Deliver = ignore) -> Finish:
        """See `Engine.generate_async`. `Finish` tries again what has failed by then, on all ranks together."""
        return self._begin(request, deliver, in_background=True)

    def _begin(self, request: Request, deliver: Deliver, *, in_background: bool) -> Finish:
        check_context(request, self.fleet.context)
        results: list[list[Completion]] = [[] for _ in request.prompts]
        attempt = partial(self._attempt, request, results, deliver)
        wanted = [prompt for prompt, count in enumerate(request.num_samples) if count]
        first_attempt = in_thread(attempt, wanted) if in_background else partial(attempt, wanted)

        def finish() -> list[list[Completion]]:
            failed, failure = first_attempt()
            for _ in range(self.retries):
                if not any(gather_objects(len(failed))):
                    break
                self.fleet.prepare()
                failed, failure = attempt(failed)
            left = gather_objects((len(failed), failure))
            if any(count for count, _ in left):
                raise EngineError(
                    f"Expected responses to all prompts, but {sum(count for count, _ in left)} requests failed "
                    f"{self.retries + 1} times, last with: {next(failure for _, failure in left if failure)}. "
                    "Look at the server's log."
                )
            return results

        return finish

    def _attempt(
        self, request: Request, results: list[list[Completion]], deliver: Deliver, wanted: Sequence[int]
    ) -> tuple[list[int], str]:
        """Ask once for the prompts `wanted`, spread over the servers that are ready; those that failed, and why."""
        servers = [self.fleet.servers[number] for number in self.fleet.ready]
        one_at_a_time = threading.Lock()

        def ask(index: int) -> str | None:
            prompt, server = wanted[index], servers[index % len(servers)]
            completions: list[Completion] = []
            try:
                while (left := request.num_samples[prompt] - len(completions)) > 0:
                    count = min(left, MOST_SAMPLES)
                    body = self._body(request, prompt, len(completions), count)
                    choices = server.post("/inference/v1/generate", body)["choices"]
                    drawn = [self._completion(c) for c in sorted(choices, key=lambda c: c["index"])]
                    completions += drawn * (count // len(drawn))
            except (httpx.HTTPError, OSError, EngineError, _StaleWeightsError) as error:
                return f"{server.url}: {type(error).__name__}: {error}"
            results[prompt] = completions
            with one_at_a_time:
                deliver(prompt, results[prompt])
            return None

        with ThreadPoolExecutor(min(self.concurrency, max(len(wanted), 1))) as threads:
            failures = list(threads.map(ask, range(len(wanted))))
        failed = [prompt for prompt, failure in zip(wanted, failures, strict=True) if failure is not None]
        return failed, next((failure for failure in reversed(failures) if failure), "")

    def _body(self, request: Request, prompt: int, first: int, count: int) -> dict[str, Any]:
        """Ask for `count` samples to one prompt, the number of the first of which is `first`."""
        params = vllm_sampling(request.sampling, count, self.stop_ids)
        params["seed"] = derive_seed(request.seed, prompt) + first  # vLLM adds the number within the request
        return {"token_ids": request.prompts[prompt].tolist(), "sampling_params": params}

    def _completion(self, choice: dict[str, Any]) -> Completion:
        versions = {span["version"] for span in choice.get("weight_versions") or ()}
        if versions != {self.fleet.version} or choice["finish_reason"] not in ("stop", "length"):
            raise _StaleWeightsError(
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


class _StaleWeightsError(Exception):
    """A response that was not sampled by the current weights from its first token to its last."""
