"""Start a vLLM server that `VLLMServerEngine` can sample from.

    python -m tagrpo.rollouts.servers.serve Qwen/Qwen3-1.7B --port 8000 --tensor-parallel-size 2

The server starts with random weights, and the trainer sends the policy's weights before the first sample.
Options of `vllm serve` may follow, and take precedence. The server listens on 127.0.0.1 unless `--host` says
otherwise, and refuses every request without the token that it shares with the trainer (see `access.py` and
docs/multi_node.md).
"""

import ctypes
import json
import os
import signal
import sys

from ..engines.base import FLOAT32_HEAD
from .access import VARIABLE, RequireToken, shared_token


def server_arguments(model: str, options: list[str], cpu: bool) -> list[str]:
    """Return the command line of vLLM's server.

    >>> server_arguments("Qwen/Qwen3-1.7B", ["--port", "9000"], cpu=False)[-2:]
    ['--port', '9000']
    """
    return [
        "--model", model, "--host", "127.0.0.1", "--load-format", "dummy", "--hf-overrides", json.dumps(FLOAT32_HEAD),
        "--middleware", f"{RequireToken.__module__}.{RequireToken.__name__}",
        "--worker-extension-cls", "tagrpo.rollouts.engines.vllm.WorkerExtension",
        "--logprobs-mode", "processed_logprobs",  # at the sampling temperature, of the tokens that were drawn
        "--enable-scale-out",  # tokens in, tokens out, each response with the version of its weights
        # vLLM can't step a CPU generator back, which it does for requests with a seed when a prefill is cut.
        *(["--no-enable-chunked-prefill"] if cpu else []),
        "--disable-log-stats", "--disable-uvicorn-access-log", *options,
    ]  # fmt: skip


def main() -> None:
    """Entry point: `python -m tagrpo.rollouts.servers.serve MODEL [options of vllm serve]`."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    os.environ[VARIABLE] = shared_token()
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"  # opens the routes that pause, call workers and name weights
    from vllm.platforms import current_platform

    sys.argv[1:] = server_arguments(sys.argv[1], sys.argv[2:], current_platform.is_cpu())
    from vllm.entrypoints.launchers.api_server.entry import main as serve

    serve()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__" and sys.platform == "linux":  # in the processes that vLLM spawns
    # PR_SET_PDEATHSIG: end with the server, else the engine outlives it
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
