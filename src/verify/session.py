"""`tagrpo-verify`: one batch through other trainers' code and ours. Only `main` knows Hydra.

tagrpo-verify runs/grpo/seed0 trainers.verl=.trainers/verl/bin/python
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from ..settings.methods import experiments, options_of
from ..types.checks import check_choice
from .adapters import Answer, ask, has_module, known_trainers, write_exchange
from .batch import Batch, read_batch, small_batch
from .compare import Comparison, compare
from .methods import composed, told
from .models import Models, models_for
from .outcome import Difference
from .page import write_page
from .trainers.installs import INSTALL

ENVIRONMENTS = ".trainers"
"""Folder of trainers' environments, unless TAGRPO_TRAINERS names another."""


def python_of(trainer: str, given: str | None) -> str | None:
    """Return the interpreter that has a trainer, or None if none is found.

    Raises:
        FileNotFoundError: if the given interpreter does not exist.
    """
    if given is not None:
        python = Path(given).expanduser()
        if not python.is_file():
            raise FileNotFoundError(
                f"Expected trainers.{trainer} to be the Python of an environment, but there is nothing at {python}. "
                f"Make it: {INSTALL.get(trainer, '')}"
            )
        return str(python)
    folder = Path(os.environ.get("TAGRPO_TRAINERS", ENVIRONMENTS))
    own = folder / trainer / "bin" / "python"
    if own.is_file():
        return str(own.absolute())
    return sys.executable if has_module(sys.executable, trainer) else None


def answers_of(
    cfg: DictConfig, batch: Batch, models: Models, methods: Sequence[str], folder: Path
) -> dict[str, Answer | str]:
    """Run every trainer's adapter; return its answer, or how to install it."""
    first = composed(methods[0], "none", cfg.overrides)
    settings = {
        "dtype": cfg.dtype,
        "temperature": float(first.policy.temperature),
        "micro_batch_rows": cfg.micro_batch_rows or len(batch),
        "max_response_tokens": int(first.rollout.sampling.max_new_tokens),
        "methods": {name: told(composed(name, "none", cfg.overrides)) for name in methods},
    }
    write_exchange(folder / "in", batch, models, settings)
    answers: dict[str, Answer | str] = {}
    for trainer, given in cfg.trainers.items():
        name = str(trainer)
        python = python_of(name, given)
        if python is None:
            answers[name] = INSTALL.get(name, "is not installed")
        else:
            answers[name] = ask(name, python, folder / "in", folder / name)
    return answers


@contextmanager
def work_folder(given: str | None) -> Iterator[Path]:
    """Yield the folder that trainers read and write: the given one, which stays, or a temporary one."""
    if given is not None:
        yield Path(given).absolute()
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def comparisons_of(
    cfg: DictConfig, batch: Batch, models: Models, methods: Sequence[str], answers: Mapping[str, Answer | str]
) -> list[Comparison]:
    """Compare every method with every trainer that has answered."""
    sizes = [size for size in (2, 3, 4, 6, 8, 12) if size < len(batch)]
    found = []
    for trainer, answer in answers.items():
        if isinstance(answer, str):
            continue
        written = trainer in options_of("conventions")
        conventions = cfg.conventions or (trainer if written else "none")
        for method in methods:
            found.append(
                compare(
                    trainer,
                    method,
                    answer,
                    batch,
                    models,
                    conventions=conventions,
                    overrides=cfg.overrides,
                    micro_batch_rows=sizes,
                )
            )
    return found


def show(
    batch: Batch, answers: Mapping[str, Answer | str], found: Sequence[Comparison], console: Console
) -> None:
    """Print a table and the verdicts per trainer, what each convention is worth, and the differences that remain."""
    console.print(f"{batch.name}: {len(batch)} responses to {len(batch.groups)} prompts", markup=False)
    for trainer, answer in answers.items():
        if isinstance(answer, str):
            console.print(f"\n{trainer}: not installed. {answer}", markup=False, soft_wrap=True)
            continue
        own = [each for each in found if each.trainer == trainer]
        console.print(f"\n{trainer} {answer.version}: largest differences from ours")
        if any(each.default for each in own):
            console.print(_table(trainer, own))
        for each in own:
            console.print(f"{each.method}: {each.verdict}", markup=False, soft_wrap=True)
        _show_worths(own, console)
        _show_metrics(own, console)
        for each in own:
            for side, findings in (("ours", each.ours), (trainer, each.theirs)):
                for finding in findings:
                    console.print(f"{each.method}, {side}: {finding}", markup=False, soft_wrap=True)


def _table(trainer: str, found: Sequence[Comparison]) -> Table:
    """Return the differences of each method, by our defaults and with the trainer's conventions."""
    table = Table("method", "conventions", "advantages", "weights", "loss", "gradient")
    for each in found:
        if each.default is not None and each.conventional is not None:
            table.add_row(each.method, "ours", *_figures(each.default))
            if each.conventional != each.default:
                table.add_row("", trainer, *_figures(each.conventional))
    return table


def _figures(found: Difference) -> list[str]:
    values = [found.advantages, found.token_weights, found.loss, found.gradient]
    return [f"{value:.0e}" if value else "0" for value in values]


def _show_worths(found: Sequence[Comparison], console: Console) -> None:
    worths: dict[str, dict[str, str]] = {}
    for each in found:
        for worth in each.worths:
            if worth.gradient != 0.0:
                change = "not alone" if worth.gradient is None else f"{100 * worth.gradient:.2g} %"
                worths.setdefault(str(worth.convention), {})[each.method] = change
    for setting, methods in worths.items():
        changes = ", ".join(f"{method} {change}" for method, change in methods.items())
        console.print(f"{setting} changes the gradient by: {changes}", markup=False, soft_wrap=True)


def _show_metrics(found: Sequence[Comparison], console: Console) -> None:
    for each in found:
        differing = {
            name: pair
            for name, pair in each.metrics.items()
            if abs(pair[0] - pair[1]) > 1e-4 * max(1, abs(pair[0]))
        }
        for name, (theirs, ours) in differing.items():
            console.print(
                f"{each.method}, metric {name}: {theirs:.5g} there, {ours:.5g} in ours", markup=False
            )


def verify(cfg: DictConfig, console: Console) -> list[Comparison]:
    """Send the batch through every trainer, and print and return the comparisons."""
    torch.set_num_threads(1)
    for method in cfg.methods:
        check_choice("methods", method, experiments(), "verify")
    for trainer in cfg.trainers:
        check_choice("trainers", str(trainer), known_trainers(), "verify")
    batch = small_batch(cfg.seed)
    if cfg.batch is not None:
        batch = read_batch(Path(cfg.batch).expanduser(), cfg.iteration, cfg.questions)
    methods = list(cfg.methods)
    temperature = float(composed(methods[0], "none", cfg.overrides).policy.temperature)
    batch, models = models_for(batch, cfg.model, temperature, cfg.seed)
    with work_folder(cfg.work) as folder:
        answers = answers_of(cfg, batch, models, methods, folder)
    found = comparisons_of(cfg, batch, models, methods, answers)
    show(batch, answers, found, console)
    if cfg.page is not None:
        write_page(Path(cfg.page), answers, found)
    return found
