"""Plugin of vLLM's servers, loaded in each of their processes (entry point `vllm.general_plugins`).

`--weight-transfer-config '{"backend": "tcp"}'` then names `TcpWeightTransferEngine`, for servers on CPUs and
wherever NCCL is missing.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
from contextlib import suppress


def register() -> None:
    """Register the backend, and let processes that a server has started end with it.

    vLLM's engine outlives a killed server, and would keep its memory. Only servers with `VLLM_SERVER_DEV_MODE`
    take weights, so that other users of vLLM are left alone. Calling this function again has no effect.
    """
    from vllm import envs
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    with suppress(ValueError):  # it is registered
        WeightTransferEngineFactory.register_engine(
            "tcp", "tagrpo.rollouts.transfer.tcp", "TcpWeightTransferEngine"
        )
    started_by_server = multiprocessing.parent_process() is not None and envs.VLLM_SERVER_DEV_MODE
    if started_by_server and sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() == 1:  # the server has died before
            os._exit(1)
