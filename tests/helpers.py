"""Stand-ins and waiting that several test files share."""

from __future__ import annotations

import base64
import gc
import json
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import tomllib
import traceback
import zlib
from contextlib import suppress
from html import unescape
from importlib import import_module
from pathlib import Path

import numpy as np
import torch

from tagrpo import types
from tagrpo.metrics.evaluation import merge_counts
from tagrpo.rollouts import EngineError
from tagrpo.rollouts.engines.base import in_thread
from tagrpo.types import Completion

with suppress(ModuleNotFoundError):  # Hydra, in tests of the core alone
    from tests import composition


def counted(questions):
    """Rows of evaluated questions, from id → responses, correct ones, and where given tokens and truncated ones."""
    named = {
        id: dict(zip(("n", "correct", "tokens", "truncated"), (*x, 0, 0)[:4], strict=True))
        for id, x in questions.items()
    }
    none = {"metadata": {}, "right": [], "wrong": {}}
    return merge_counts(
        {"split": "", "id": id, "counts": {**none, **counts}} for id, counts in named.items()
    )[""]


def wait_until(condition, seconds=600):
    """What `condition()` returns as soon as that is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.05)
    return found


def grid_run(root, name, code, *settings):
    """A run of a grid that executes `code` in its directory."""
    from tagrpo.runs.grid import GridRun

    directory = root / name / "seed0"
    code = f"import os, signal, sys, time; os.chdir({str(directory)!r}); {code}"
    return GridRun(name, 0, directory, [sys.executable, "-c", code, *settings])


def on_two_ranks(monkeypatch, run, *modules):
    """Call `run(rank)` in two threads, which are ranks to what `modules` have imported of `tagrpo.distributed`."""
    barrier, local, values, failures = threading.Barrier(2), threading.local(), [None, None], []

    def gather(value):
        values[local.rank] = value
        barrier.wait()
        gathered = list(values)
        barrier.wait()
        return gathered

    stand_ins = {"gather_objects": gather, "rank": lambda: local.rank, "world_size": lambda: 2}
    for module in modules:
        for name in stand_ins.keys() & vars(module).keys():
            monkeypatch.setattr(module, name, stand_ins[name])

    def work(rank):
        local.rank = rank
        try:
            run(rank)
        except Exception as error:
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


class Fork:
    """A fork of this process, which has its imports, that calls `work()`. `arguments` become its `sys.argv[1:]`."""

    def __init__(self, work, *arguments):
        self.output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.pid = os.fork()
        if not self.pid:
            self._run(work, arguments)

    def _run(self, work, arguments):
        """Be the child; never return."""
        code = 1
        gc.freeze()  # else collections here would copy the parent's memory
        try:
            for stream in (1, 2):
                os.dup2(self.output.fileno(), stream)
            sys.stdout, sys.stderr = (open(stream, "w", buffering=1) for stream in (1, 2))  # noqa: SIM115
            sys.argv[1:] = map(str, arguments)
            work()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            print(end.code if isinstance(end.code, str) else "", file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)

    def has_ended(self):
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def wait(self):
        """Exit code and output."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        with self.output:
            self.output.seek(0)
            return code, self.output.read()


def in_fork(work, *arguments):
    """Call `work()` in a fork of this process; return exit code and output."""
    return Fork(work, *arguments).wait()


SCRIPTS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["scripts"]
"""Name of a console script → its module and function."""


def forked(program, *arguments, folder=".", environment=()):
    """Run a console script, `train` for `tagrpo-train` say, in a fork of this process.

    It runs in a folder, from which it can import, with these variables added to its environment. Returns exit code and
    output.
    """
    composition.parse()

    def work():
        os.environ.update(environment)
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        script = "tagrpo-" + {"evaluate": "eval"}.get(program, program)
        import_module(SCRIPTS[script].removesuffix(":main")).main()

    return in_fork(work, *arguments)


def in_forks(worlds):
    """Go on in forks of this process, which have its imports: as every rank of each world, one world after the other.

    Args:
        worlds: Name → number of ranks. Those of a world with several have the environment that torchrun gives them.

    Returns:
        The name of the fork's world. This process itself waits, and exits as soon as a rank of any world has failed.
    """
    for name, size in worlds.items():
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        children = set()
        for rank in map(str, range(size)):
            if not (child := os.fork()):
                if size > 1:
                    own = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "none"}
                    own |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
                    os.environ.update(own, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
                return name
            children.add(child)
        while children:
            child, status = os.wait()
            children.discard(child)
            if status:
                for other in children:  # they would wait for it
                    os.kill(other, signal.SIGKILL)
                sys.exit(f"a rank of {name} ended with {os.waitstatus_to_exitcode(status)}")
    sys.exit()


class WaitingEngine(types.Engine):
    """Responds with the number in the policy's only weight, and refuses two things at once.

    What it samples aside waits for the event `updated`; the requests of that kind numbered in `fail_at`, from 1, fail.
    `calls` has (kind, weight, first token of each prompt) of every request.
    """

    asynchronous = True

    def __init__(self, updated=None, fail_at=()):
        self.updated, self.fail_at = updated, fail_at
        self.weight, self.names, self.busy, self.calls, self.seeds = 0, [], False, [], []

    def sync(self, parameters):
        assert not self.busy
        ((name, tensor),) = parameters
        self.names.append(name)
        self.weight = int(tensor)

    def generate(self, request, deliver=types.ignore):
        self.enter("generate", request)
        return self.responses(request)

    def enter(self, kind, request):
        assert not self.busy
        self.calls.append((kind, self.weight, [int(prompt[0]) for prompt in request.prompts]))
        self.seeds.append(request.seed)

    def responses(self, request):
        ids = torch.tensor([self.weight, 2])
        return [
            [Completion(token_ids=ids, logprobs=torch.full((2,), -0.5), truncated=False)] * count
            for count in request.num_samples
        ]

    def generate_async(self, request, deliver=types.ignore):
        self.enter("generate_async", request)
        self.busy, number = True, sum(call[0] == "generate_async" for call in self.calls)

        def sample():
            assert self.updated is None or self.updated.wait(600), "the update waits for sampling"
            if number in self.fail_at:
                raise EngineError("gone")
            return self.responses(request)

        wait = in_thread(sample)

        def finish():
            self.busy = False
            return wait()

        return finish


def read_blocks(page):
    """Name → column → array or JSON value, of all data blocks of a report's page."""
    pattern = r'<script type="application/octet-stream" id="([^"]*)" data-columns="([^"]*)">([^<]*)</script>'
    return {
        unescape(name): _columns(json.loads(unescape(about)), zlib.decompress(base64.b64decode(text)))
        for name, about, text in re.findall(pattern, page.read_text(encoding="utf-8"))
    }


def _columns(directory, content):
    columns, start = {}, 0
    for column, kind, size in directory:
        part = content[start : start + size]
        if kind == "json":
            columns[column] = json.loads(part)
        else:
            planes = np.frombuffer(part, np.uint8).reshape(int(kind[1]), -1)
            columns[column] = np.ascontiguousarray(planes.T).view(f"<{kind}").reshape(-1)
        start += size
    return columns


def parsed_by_hydra(override):
    """An argument of a command as Hydra's own parser reads it."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_override(override)
