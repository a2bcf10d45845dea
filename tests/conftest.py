"""Shared fixtures: a tiny policy, hand-made rollouts, synthetic run directories, one vLLM engine per session."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # as in jobs of a shell's background, whose children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("TAGRPO_TOKEN", "the token of the tests")  # of vLLM servers

import certifi
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, settings
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from tagrpo.rollouts.transfer.flags import server_flags
from tagrpo.starter import starter_path
from tagrpo.types import Prompt, QuestionBatch, QuestionGroup, Rollouts, Seconds

torch.set_num_threads(1)
with suppress(ModuleNotFoundError):  # Hydra, in tests of the core alone
    from tests import composition

    composition.remember()
# No property fails because the machine is busy.
settings.register_profile(
    "unhurried", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unhurried")


MARKED = re.compile(r"^pytestmark = pytest\.mark\.(\w+)$", re.MULTILINE)
"""The mark of a whole file."""
LONGEST = (Path(__file__).parent / "longest.txt").read_text().split()
"""Files that take longest, the longest first: they are started first, so that no process is left with one at the end."""
WITH_VLLM = "rollouts/test_contract.py"
"""Starts a vLLM engine and comes last: its group of ranks stays in the process, and plans of ranks need their own."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that are deselected as a whole, without importing them."""
    if collection_path.suffix != ".py":
        return None
    marks = MARKED.findall(collection_path.read_text(encoding="utf-8"))
    return True if any(f"not {mark}" in config.option.markexpr for mark in marks) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first."""
    folder = Path(__file__).parent
    places = {folder / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (item.path == folder / WITH_VLLM, places.get(item.path, len(places))))


def pytest_collection_finish() -> None:
    """Have the garbage collector leave alone what was imported, which stays."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """Take back what a test does to the root logger: commands log to the streams and files of their own test."""
    level, before = logging.root.level, set(logging.root.handlers)
    yield
    logging.root.setLevel(level)
    for handler in set(logging.root.handlers) - before:
        logging.root.removeHandler(handler)
        handler.close()


@pytest.fixture(autouse=True, scope="session")
def without_fsync() -> Iterator[None]:
    """Do not wait for the disk: no test takes the power away, and a run of three iterations syncs 23 times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the first of the certificates of `certifi`."""
    end = "-----END CERTIFICATE-----"
    file = tmp_path_factory.mktemp("certificates") / "first.pem"
    file.write_text(certifi.contents().partition(end)[0] + end)
    return file


@pytest.fixture
def plain_http(monkeypatch: pytest.MonkeyPatch, certificate: Path) -> None:
    """Have clients of HTTP read one certificate, not all in 40 ms each: the servers of the tests have none."""
    monkeypatch.setattr(certifi, "where", lambda: str(certificate))


class LargestTensor(TorchDispatchMode):
    """The most elements of any tensor that an operation returns, those of some shapes left out."""

    def __init__(self, except_shapes: set[tuple[int, ...]]) -> None:
        super().__init__()
        self.except_shapes, self.numel = except_shapes, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tuple(tensor.shape) not in self.except_shapes:
                self.numel = max(self.numel, tensor.numel())
        return out


@pytest.fixture
def largest_tensor() -> type[LargestTensor]:
    """A context that watches how large tensors become."""
    return LargestTensor


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a randomly initialised two-layer Qwen3, grouped queries, tied head, and the starter's tokenizer."""
    folder = tmp_path_factory.mktemp("tiny_policy")
    tokenizer = AutoTokenizer.from_pretrained(starter_path())
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,  # the smallest that vLLM has CPU attention for
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    # Random weights of the usual size give nearly uniform log-probs; larger ones make differences visible.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_hand_made_batch(
    rewards: Sequence[Sequence[Sequence[float]]], seed: int = 0, vocabulary: int = 60
) -> QuestionBatch:
    """A batch with rollouts by hand: `rewards[question][rephrasing]` is a list of rewards; tokens are random."""
    generator = torch.Generator().manual_seed(seed)

    def ids(low: int, high: int) -> torch.Tensor:
        length = int(torch.randint(low, high, (1,), generator=generator))
        return torch.randint(3, vocabulary, (length,), generator=generator)

    groups, prompts, flat = [], [], []
    for row, versions in enumerate(rewards):
        anchor = ids(4, 9)
        rephrasings = tuple(f"q{row} rephrased {n}" for n in range(1, len(versions)))
        groups.append(QuestionGroup(f"q{row}", f"question {row}", rephrasings, ("1",)))
        for rephrasing, values in enumerate(versions):
            own = anchor if rephrasing == 0 else ids(4, 9)
            prompts.append(Prompt(row, rephrasing, "plain", "text", own, anchor, len(values)))
            flat += [(len(prompts) - 1, row, rephrasing, value) for value in values]
    prompt, question, rephrasing = (torch.tensor([item[i] for item in flat]) for i in range(3))
    token_ids = [ids(1, 8) for _ in flat]
    values = torch.tensor([item[3] for item in flat])
    rollouts = Rollouts(
        prompts=prompts,
        prompt=prompt,
        question=question,
        rephrasing=rephrasing,
        token_ids=token_ids,
        logprobs=[torch.full((len(t),), -1.0) for t in token_ids],
        truncated=torch.zeros(len(flat), dtype=torch.bool),
        text=[f"answer {i % 3}" for i in range(len(flat))],
        correct=values > 0.5,
        answers=[str(i % 3) for i in range(len(flat))],
        rewards=values,
        replayed=torch.zeros(len(flat), dtype=torch.bool),
        staleness=torch.zeros(len(flat), dtype=torch.long),
        seconds=Seconds(sync=0.0, generate=0.1, score=0.01),
    )
    return QuestionBatch(groups=groups, prompts=prompts, rollouts=rollouts)


@pytest.fixture
def make_batch() -> Callable[..., QuestionBatch]:
    """`make_hand_made_batch`, for tests that need batches."""
    return make_hand_made_batch


@pytest.fixture(scope="session")
def write_run() -> Callable[..., Path]:
    """Write `<root>/<method>/seed<k>/` from the number of correct responses (of n) of each question."""

    def write(root: Path, method: str, seed: int, correct: list[int], n: int = 8, zero: float = 50.0) -> Path:
        path = root / method / f"seed{seed}"
        path.mkdir(parents=True)
        questions = [{"id": f"q{i:03d}", "n": n, "correct": c} for i, c in enumerate(correct)]
        curve = {k: {"value": 0.0, "low": 0.0, "high": 0.0} for k in (1, 2, 4, 8) if k <= n}
        split = {
            "num_questions": len(questions), "pass_at_k": curve,
            "majority": 0.5, "wrong_answers": 1.0, "questions": questions,
        }  # fmt: skip
        (path / "test.json").write_text(
            json.dumps({"stage": "test", "global_step": 4, "splits": {"test_id": split}})
        )
        ledger = {"prompts": 8, "rollouts": 64, "tokens": 1000, "updates": 4, "iterations": 2}
        (path / "ledger.json").write_text(json.dumps(ledger))
        rows = {
            "step": [0, 1, 2], "budget/rollouts": [32, 64, None],
            "rollout/reward": [0.25, 0.5, None], "zero_gradient/percentage": [zero, zero, None],
            "uniform_reward/original": [60.0, 40.0, None], "rollout/correct_original": [0.2, 0.3, None],
            "rollout/entropy": [0.3, 0.2, None],
            "train/grad_norm": [1.0, 2.0, None], "seconds/iteration": [None, 1.5, None],
        }  # fmt: skip
        pd.DataFrame(rows).to_csv(path / "metrics.csv", index=False)
        (path / "command.txt").write_text(f"python -m tagrpo.cli.train experiment={method} seed={seed}\n")
        diversity = [
            (i, f"q{i}", pool, 8, 0.1 * i + 0.1) for i in range(6) for pool in ("original", "rephrasings")
        ]
        frame = pd.DataFrame(diversity, columns=["iteration", "question", "pool", "responses", "distance"])
        frame.to_csv(path / "embedding_diversity.csv", index=False)
        return path

    return write


@pytest.fixture(scope="session")
def vllm_engine(tiny_policy: Path) -> Iterator[object]:
    """The one vLLM engine of the session: importing it costs half a minute."""
    pytest.importorskip("vllm")
    from tagrpo.rollouts import VLLMEngine

    engine = VLLMEngine(
        str(tiny_policy),
        dtype="float32",
        max_model_len=128,
        kv_cache_memory_bytes=32 << 20,
        enforce_eager=True,
    )
    yield engine
    engine.close()


class VLLMServers:
    """Starts and kills stock vLLM servers with the weights of nobody; see `vllm_servers.py`."""

    def __init__(self, model: Path, folder: Path) -> None:
        script = Path(__file__).with_name("vllm_servers.py")
        self.model, self.folder = model, folder
        self.launcher = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "VLLM_SERVER_DEV_MODE": "1"},
        )  # fmt: skip
        self.running: dict[str, int | None] = {}

    def start(
        self, url: str | None = None, without: Sequence[str] = (), model: str | Path | None = None
    ) -> str:
        """Start a server, on the address of a killed one or on a new one; returns its URL at once, not ready yet.

        `without` are flags that the server lacks, `model` is a folder other than that of `tiny_policy`.
        """
        if url is None:
            with socket.create_server(("127.0.0.1", 0)) as free:
                url = f"http://127.0.0.1:{free.getsockname()[1]}"
        port = url.rpartition(":")[2]
        flags = " ".join(flag for flag in server_flags(cpu=True) if flag not in without)
        options = ["--model", str(model or self.model), *shlex.split(flags), "--load-format", "dummy"]
        options += ["--port", port, "--dtype", "float32", "--max-model-len", "128", "--enforce-eager"]
        options += ["--kv-cache-memory-bytes", str(32 << 20)]
        options += ["--worker-extension-cls", "vllm_digests.Digests"]
        options += ["--chat-template", "{% for message in messages %}{{ message.content }} {% endfor %}"]
        job = [str(self.folder / f"{port}.log"), *options]
        self.launcher.stdin.write(json.dumps(job) + "\n")
        self.launcher.stdin.flush()
        self.running[url] = None
        return url

    def signal(self, url: str, number: int) -> None:
        """A signal to the server and its engine."""
        for started, process in self.running.items():
            if process is None:  # the launcher prints process ids in the order of the starts
                self.running[started] = int(self.launcher.stdout.readline())
        os.killpg(self.running[url], number)

    def kill(self, url: str) -> None:
        """SIGKILL to the server and its engine; returns when they have left their port."""
        with suppress(ProcessLookupError):
            while True:
                self.signal(url, signal.SIGKILL)
                time.sleep(0.05)
        del self.running[url]

    def close(self) -> None:
        for url in list(self.running):
            self.kill(url)
        self.launcher.kill()
        self.launcher.wait()


@pytest.fixture(scope="session")
def vllm_servers(tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMServers]:
    """Starts real vLLM servers of `tiny_policy`."""
    pytest.importorskip("vllm")
    servers = VLLMServers(tiny_policy, tmp_path_factory.mktemp("vllm_servers"))
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def vllm_server(vllm_servers: VLLMServers) -> str:
    """URL of the one vLLM server of the session; not ready yet when it is returned the first time."""
    return vllm_servers.start()
