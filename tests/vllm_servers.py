"""Forks stock vLLM servers from one process that has imported vLLM: a server then starts in seconds, not in a minute.

    python vllm_servers.py          then on stdin, one JSON list a line: [log file, option, …]

Prints the process id of each server; it leads a process group of its own, so that `killpg` ends all of it.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import runpy
import signal
import sys
import warnings

from vllm.utils import system_utils

# vLLM spawns its engine on CPUs, which would import everything again.
system_utils.get_mp_context = lambda: multiprocessing.get_context("fork")

for module in (
    "uvloop",
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.model_executor.models.qwen3",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "vllm_digests",
    "tagrpo.rollouts.transfer.tcp",
):
    importlib.import_module(module)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # killed servers leave no zombies
    for line in sys.stdin:
        log, *arguments = json.loads(line)
        server = os.fork()
        if server == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for stream in (1, 2):
                os.dup2(output, stream)
            sys.argv[1:] = arguments
            warnings.simplefilter("ignore")
            runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
            os._exit(0)
        print(server, flush=True)
    os._exit(0)  # vLLM's threads would keep the process


if __name__ == "__main__":
    main()
