"""Trainers of others in processes of their own: what they get, how they are run, and what they return."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from safetensors.torch import load_file
from transformers.utils import logging

from ..files import write_json
from ..foreign import Finite, ForeignDataError, Message, printable, read_json
from ..rewards.child_environment import child_environment
from .batch import Batch
from .models import Models, logprobs_of
from .outcome import Outcome

SCRIPTS = Path(__file__).parent / "trainers"
SECONDS = 600
"""Longest time of an adapter's process, all methods together."""


class MethodResult(Message):
    """Entry of a method in an adapter's `result.json`."""

    supported: bool | str
    """True, or the reason why the trainer can't run the method."""
    advantages: list[list[Finite]] = Field(default=[])
    token_weights: list[list[Finite]] = Field(default=[])
    loss: Finite = 0.0
    metrics: dict[str, float | None] = Field(default={})
    options: dict[str, Any] = Field(default={})


class Result(Message):
    """An adapter's `result.json`."""

    trainer: str
    version: str
    methods: dict[str, MethodResult]


@dataclass(frozen=True)
class Answer:
    """Answer of a trainer: outcome, or the reason why there is none, for each method."""

    version: str
    """Version of the trainer; empty if it is not installed."""
    outcomes: Mapping[str, Outcome]
    """Method → outcome."""
    reasons: Mapping[str, str]
    """Method → reason why the trainer can't run it."""


def known_trainers() -> list[str]:
    """Return the names of the trainers that have an adapter."""
    files = sorted(SCRIPTS.glob("*.py"))
    return [file.stem for file in files if not file.stem.startswith("_") and file.stem != "protocol"]


@cache
def has_module(python: str, name: str) -> bool:
    """Check that an interpreter finds a module, without importing it."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
    command = [python, "-I", "-c", code]
    return subprocess.run(command, check=False, capture_output=True, env=child_environment()).returncode == 0


def write_exchange(folder: Path, batch: Batch, models: Models, settings: Mapping[str, Any]) -> None:
    """Write the batch, the policy and the settings for adapters to `folder`; `protocol.py` describes the files."""
    prompts = [row.prompt_ids for row in batch.rows]
    responses = [row.response_ids for row in batch.rows]
    reference = logprobs_of(models.reference, prompts, responses, settings["temperature"])
    rows = []
    for row, values in zip(batch.rows, reference, strict=True):
        rows.append({**row.model_dump(), "reference_logprobs": values.tolist()})
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "batch.json", {"rows": rows})
    write_json(folder / "settings.json", settings)
    logging.disable_progress_bar()
    models.policy.save_pretrained(folder / "model")


def ask(trainer: str, python: str | None, source: Path, target: Path) -> Answer:
    """Run a trainer's adapter on the exchange in `source`; it writes to `target`.

    Args:
        trainer: Name of the adapter in `trainers/`.
        python: Interpreter of the environment that has the trainer; None takes the present one.
        source: Folder of `write_exchange`.
        target: Folder of the adapter's results.

    Raises:
        RuntimeError: if the adapter's process fails or takes longer than `SECONDS`.
        ForeignDataError: if the results break the protocol.
    """
    command = [python or sys.executable, str(SCRIPTS), trainer, str(source), str(target)]
    offline = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    setting = f"trainers.{trainer}.python"
    target.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            cwd=target,
            env={**child_environment(), **offline},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(
            f"Expected {trainer}'s adapter to run under {command[0]}, but {printable(str(error))}. Correct {setting}."
        ) from error
    if done.returncode:
        *_, last = done.stderr.strip().splitlines() or ["nothing was printed"]
        raise RuntimeError(
            f"Expected {trainer}'s adapter to end well, but it ended with {done.returncode}: {printable(last)}. "
            f"Run it by hand to see more: {' '.join(command)}"
        )
    return read_answer(trainer, target)


def read_answer(trainer: str, target: Path) -> Answer:
    """Read what an adapter has written to `target`.

    Raises:
        ForeignDataError: if a file is missing or breaks the protocol.
    """
    source = f"the result of {trainer}'s adapter"
    remedy = f"Correct src/verify/trainers/{trainer}.py."
    try:
        text = (target / "result.json").read_bytes()
    except OSError as error:
        raise ForeignDataError(f"Expected {source} at {target}, but {error}. {remedy}") from error
    result = read_json(Result, text, source=source, remedy=remedy)
    outcomes = {}
    reasons = {}
    for name, entry in result.methods.items():
        if entry.supported is not True:
            reasons[name] = str(entry.supported)
            continue
        gradient = load_file(target / f"gradient_{name}.safetensors")
        outcomes[name] = Outcome(
            advantages=_tensors(entry.advantages),
            token_weights=_tensors(entry.token_weights),
            loss=entry.loss,
            gradient={key: values.double() for key, values in gradient.items()},
            metrics={key: value for key, value in entry.metrics.items() if value is not None},
            options=entry.options,
        )
    return Answer(result.version, outcomes, reasons)


def _tensors(rows: Sequence[Sequence[float]]) -> list[torch.Tensor]:
    return [torch.tensor(row, dtype=torch.float64) for row in rows]
