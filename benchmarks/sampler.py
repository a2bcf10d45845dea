"""Response tokens per second of the project's sampler, of transformers' `generate` and of vLLM, in one run.

    python benchmarks/sampler.py --json benchmarks/results/sampler.json
    python benchmarks/sampler.py --json benchmarks/results/sampler_smollm2.json data=multiplication data.batch_size=16 \
        data.samples_per_prompt=4 rollout.sampling.max_new_tokens=16

Each engine is a process of its own with the same weights. In every round each engine samples the responses to one
batch of questions, one engine after the other; the first round warms up. Seconds are wall seconds of the call that
samples; tokens are those of the responses, end tokens included. `generate` gets the prompts as TRL gives them: each
repeated for its responses, padded on the left, in one batch.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from hydra.utils import instantiate
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from workload import report

from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.rollouts.engines.base import stop_token_ids
from tagrpo.settings.config import compose_run
from tagrpo.types import Request

ENGINES = ("transformers", "generate", "vllm_cpu")


def request_of(cfg: Any) -> Request:
    """The request for the first batch of questions, whose seed each round replaces."""
    datamodule = instantiate(cfg.data)
    datamodule.setup("fit")
    batch = next(iter(datamodule.train_dataloader()))
    prompts = [
        torch.tensor(datamodule.tokenizer(prompt.text, add_special_tokens=False).input_ids)
        for prompt in batch.prompts
    ]
    samples = [cfg.data.samples_per_prompt] * len(prompts)
    return Request(prompts, samples, instantiate(cfg.rollout.sampling), seed=0)


def sampler(name: str, cfg: Any) -> Callable[[Request], int]:
    """A function that samples the responses of a request and returns the number of their tokens."""
    if name == "generate":
        return plain_generate(cfg)
    engine = instantiate(cfg.rollout.engine)()
    engine.sync(load_causal_lm(cfg.model.path).named_parameters())

    def sample(request: Request) -> int:
        completions = engine.generate(request)
        return sum(len(c.token_ids) for samples in completions for c in samples)

    return sample


def plain_generate(cfg: Any) -> Callable[[Request], int]:
    """`sampler` for transformers' own method."""
    model = load_causal_lm(cfg.model.path).eval()
    stops = torch.tensor(stop_token_ids(cfg.model.path))

    def sample(request: Request) -> int:
        torch.manual_seed(request.seed)
        rows: list[Tensor] = []
        for prompt, count in zip(request.prompts, request.num_samples, strict=True):
            rows += [prompt] * count
        ids = pad_sequence(rows, batch_first=True, padding_side="left")
        mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True, padding_side="left")
        sampling = request.sampling
        found = model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            temperature=sampling.temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=sampling.max_new_tokens,
            eos_token_id=stops.tolist(),
            pad_token_id=int(stops[0]),
        )
        responses = found[:, ids.shape[1] :]
        ended = torch.isin(responses, stops).long()
        before = ended.cumsum(1) - ended  # end tokens before each token
        return int((before == 0).sum())

    return sample


def serve(name: str, overrides: list[str]) -> None:
    """Answer each line, the seed of a round, with seconds and tokens."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints is not an answer
    with tempfile.TemporaryDirectory() as folder:
        engine = "transformers" if name == "generate" else name
        cfg = compose_run(folder, ["experiment=grpo", f"rollout={engine}", *overrides])
        request = request_of(cfg)
        sample = sampler(name, cfg)
        print("ready", file=out, flush=True)
        for line in sys.stdin:
            start = time.perf_counter()
            tokens = sample(request._replace(seed=int(line)))
            seconds = time.perf_counter() - start
            print(json.dumps([seconds, tokens]), file=out, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Response tokens per second of three samplers.")
    parser.add_argument("--rounds", type=int, default=5, help="measured, after one of warm-up")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", help="of the configuration")
    arguments = parser.parse_args()
    if arguments.engine:
        serve(arguments.engine, arguments.overrides)
        return
    environment = os.environ | {
        "OMP_NUM_THREADS": str(arguments.threads),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    servers = {}
    for name in ENGINES:
        command = [sys.executable, __file__, "--engine", name, *arguments.overrides]
        servers[name] = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert servers[name].stdout.readline() == "ready\n", f"{name} did not start"
    rates: dict[str, list[float]] = {name: [] for name in ENGINES}
    for seed in range(arguments.rounds + 1):
        for name, server in servers.items():
            server.stdin.write(f"{seed}\n")
            server.stdin.flush()
            seconds, tokens = json.loads(server.stdout.readline())
            if seed:
                rates[name].append(tokens / seconds)
    for server in servers.values():
        server.stdin.close()
        server.wait()
    ours = rates["transformers"]
    figures = {
        name: {
            "tokens_per_second": median(values),
            "ours_times": median(own / other for own, other in zip(ours, values, strict=True)),
        }
        for name, values in rates.items()
    }
    report({"engines": figures}, arguments)


if __name__ == "__main__":
    main()
