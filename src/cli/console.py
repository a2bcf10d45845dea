"""Start and end of every console script: `--help`, errors in settings, and results."""

from __future__ import annotations

import os
import re
import shlex
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.table import Table

from ..files import write_text
from ..overrides import override
from ..redaction import for_terminal, redacted
from ..runs.directory import write_provenance
from ..runs.preemption import asked_to_stop
from ..runs.secrets import refuse_secret_arguments, save_resolved
from ..settings.choices import (
    bases_of,
    check_choices,
    check_names,
    check_search,
    groups_of,
    is_sweep,
    known_settings,
    overrides_in,
)
from ..settings.config import Run
from ..settings.methods import configs, options_of
from .uncaught import printed_safely, reported

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

WRONG_USE = (
    ValueError, TypeError, OSError, ImportError, RuntimeError, UnpicklingError, HydraException, OmegaConfBaseException
)  # fmt: skip
"""Errors that settings, files or the machine cause before a run begins."""
MORE = """
COMMAND … --cfg job                     the settings that a command would run with, every group composed
eval "$(COMMAND -sc install=bash)"      completion of settings and options by the tab key, in bash
COMMAND --hydra-help                    the flags of Hydra, which composes the settings"""
SWEPT = ("train", "evaluate")
"""Configurations of commands that can be swept."""
SWEEPS = """
COMMAND -m seed=0,1,2                   a run for each value, one after the other"""
"""Lines that `--help` adds for commands that can be swept."""
CARRIED = (
    "experiment", "recipe", "scale", "data", "data_path", "model", "template", "reward", "rollout", "protocol",
    "averages", "trainer", "strategy", "--config-dir", "hydra",
)  # fmt: skip
"""Groups and settings of a training run that its evaluation needs too, and folders of options."""
SHOWN = {"pass@k": ("pass@k", "exact_pass@k", "pass@k_average"), "Cover@τ": ("cover@tau", "exact_cover@tau")}
"""Title of a table → metrics in the table."""


def entry_point(config: str | None = None) -> Callable[[Callable[..., Any]], Callable[[], Any]]:
    """Turn a function into a console script that neither accepts nor prints secrets.

    The script ends with an error if a command-line argument contains a secret. If any other error ends the
    script, secrets are removed from the printed text.

    With a `config`, the function gets the composed configuration, and `--help` prints the configuration's
    help text.
    """

    def decorate(main: Callable[..., Any]) -> Callable[[], Any]:
        if config is not None:
            folder, _, name = f"configs/{config}".rpartition("/")
            place = f"pkg://tagrpo.{folder.replace('/', '.')}"
            main = hydra.main(config_path=place, config_name=name, version_base="1.3")(reported(main))

        @wraps(main)
        def run() -> Any:
            refuse_secret_arguments(sys.argv[1:])
            if config is not None:
                import tagrpo.configs  # noqa: F401  Hydra's completion lists options before it imports them

                if {"--help", "-h"} & set(sys.argv[1:]):
                    return print_help(config, asked_for(sys.argv[1:]))
                with explained():
                    check_choices(sys.argv[1:])
                    check_names(sys.argv[1:], known_settings(config))
                    check_search(sys.argv[1:])
                    sys.argv += named_by_sweep(sys.argv[1:])
            with printed_safely():
                return main()

        return run

    return decorate


def named_by_sweep(words: Sequence[str]) -> list[str]:
    """Return arguments that make Hydra name the folders of a sweep by the varying settings alone.

    The arguments exclude all other settings of the command line from `hydra.job.override_dirname`. Returns an
    empty list if the command line is not a sweep.

    >>> named_by_sweep(["-m", "experiment=grpo", "name=a", "seed=0,1"])
    ['hydra.job.config.override_dirname.exclude_keys=["experiment","name"]']
    """
    setting = "hydra.job.config.override_dirname.exclude_keys"
    if not is_sweep(words) or any(word.startswith(f"{setting}=") for word in words):
        return []
    fixed = ["name"]  # of the folder above
    for given in overrides_in(words):
        if not given.is_sweep_override() and not given.key_or_group.startswith("hydra."):
            fixed.append(given.key_or_group)
    names = ",".join(f'"{name}"' for name in sorted(set(fixed)))
    return [f"{setting}=[{names}]"]


def asked_for(words: Sequence[str]) -> list[str]:
    """Return the words beside `--help` that may name groups; settings and values of flags are left out.

    >>> asked_for(["--config-dir", "mine", "--help", "reward", "seed=1"])
    ['reward']
    """
    asked = []
    before = ""
    for word in words:
        is_value = before.startswith("-") and before not in ("--help", "-h", "-m", "--multirun")
        if re.fullmatch(r"[\w/]+", word) and not is_value:
            asked.append(word)
        before = word
    return asked


def print_help(config: str, words: list[str]) -> None:
    """Print the help of a command; do not fail if a reader such as `head` closes the pipe early."""
    try:
        show_help(config, words)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # or the interpreter would flush it again


def show_help(config: str, words: list[str]) -> None:
    """Print the help of the command with the configuration `config`, or the options of groups in `words`.

    Raises:
        SystemExit: if one of `words` is not the name of a group.
    """
    folder = Path(config).parent
    bases = bases_of(config)
    text = "\n".join(text_of(base) for base in bases)
    command = text[2:].partition(":")[0]
    groups = [group for base in bases for group in groups_of(base)]
    known = {name: options_of((folder / name).as_posix()) for name in dict.fromkeys([*groups, *words])}
    unknown = [name for name in words if not known[name]]
    if unknown:
        close = get_close_matches(unknown[0], groups, 1)
        hint = f"Did you mean {close[0]}? " if close else ""
        sys.exit(
            f"Expected --help, or --help with a group of {', '.join(dict.fromkeys(groups))}, but got "
            f"{unknown[0]!r}. {hint}`{command} --help` lists their options."
        )
    asked = words
    for name in asked:
        for option, content in known[name].items():
            said = [line for line in content.splitlines() if re.match(r"# (?!@package)", line)]
            print(f"  {f'{name}={option}':<32}  {said[0][2:] if said else ''}".rstrip())
    if asked:
        return
    print(text)
    print(
        f"Set as name=value. Options of the groups (group=option; `{command} --help GROUP` says what they are):"
    )
    for name, texts in known.items():
        if names := [option for option in texts if option != "base"]:
            print(f"  {name}: {', '.join(names)}")
    more = MORE + (SWEEPS if config in SWEPT else "")
    print(more.replace("COMMAND", command))


def text_of(config: str) -> str:
    """Return the text of a configuration without its section for Hydra."""
    return (configs() / f"{config}.yaml").read_text().partition("\nhydra:")[0]


def record(cfg: DictConfig, run: Run, loggers: Sequence[Logger] = ()) -> None:
    """Write settings, commit and package versions to files and to `loggers`, and the command to a file."""
    save_resolved(cfg, run.directory)
    facts = redacted(OmegaConf.to_container(cfg, resolve=True)) | write_provenance(run.directory)
    for logger in loggers:
        logger.log_hyperparams(facts)
    noted = OmegaConf.create({"hydra": OmegaConf.to_container(HydraConfig.get(), resolve=False)})
    write_text(run.directory / ".hydra" / "hydra.yaml", OmegaConf.to_yaml(noted))


@contextmanager
def explained() -> Iterator[None]:
    """Exit with the message of an error in settings; if HYDRA_FULL_ERROR=1, show its traceback instead."""
    try:
        yield
    except WRONG_USE as error:
        _leave(error)


@contextmanager
def explained_in_training(begun: Callable[[], bool]) -> Iterator[None]:
    """Exit with the message of an error in the block, as `explained` does.

    After sampling or training has begun, this is done only for errors that tagrpo raises. Errors of libraries
    and third-party parts then keep their traceback, which shows where they come from.

    A part that calls `sys.exit()` would end the run silently with exit code 0. This is reported as an error
    too, unless the run has received a signal to stop.

    Args:
        begun: Function that returns whether sampling or training has begun.
    """
    try:
        yield
    except Exception as error:
        if str(error).startswith("Expected") and _raised_here(error):
            _leave(error)
        if isinstance(error, WRONG_USE) and not begun():
            _leave(error)
        raise
    except SystemExit as error:
        if error.code or asked_to_stop():
            raise
        from ..types.checks import exit_of

        sys.exit(
            f"Expected the command to go on to its end, but {exit_of(error)}. A callback ends training with "
            "trainer.should_stop = True."
        )


def _leave(error: Exception) -> None:
    """End the program with the message of an error, or raise it again if HYDRA_FULL_ERROR=1."""
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        raise error
    cause = error.__cause__ if isinstance(error, HydraException) and error.__cause__ else error
    part = str(error).partition("full_key: ")[2] if cause is not error else ""
    where = f"\n(Its settings are those of {part}.)" if part else ""
    hint = "" if str(cause).startswith("Expected") else "\n(HYDRA_FULL_ERROR=1 shows where.)"
    sys.exit(for_terminal(f"{str(cause) or type(cause).__name__}{where}{hint}"))


def _raised_here(error: Exception) -> bool:
    """Check whether an error was raised by this package, not by a library or a user's part."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__", "")).startswith("tagrpo.")


def show(metrics: Mapping[str, float]) -> None:
    """Print a table of pass@k by split, and a table of Cover@τ if it was requested."""
    for title, shown in SHOWN.items():
        curves: dict[str, dict[str, float]] = defaultdict(dict)
        for name, value in metrics.items():
            if name.startswith(tuple(f"{what}/" for what in shown)):
                what, split, place = name.split("/")
                curves[f"{split} (average)" if what == "pass@k_average" else split][place] = value
        places = sorted({place for points in curves.values() for place in points}, key=float)
        table = Table("split", *(f"@{place}" for place in places), title=f"{title}, in percent")
        for split, points in curves.items():
            table.add_row(
                split, *(f"{100 * points[place]:.1f}" if place in points else "" for place in places)
            )
        if curves:
            Console().print(table)


def conclude(
    metrics: Mapping[str, float], directory: Path, overrides: Sequence[str], name: str, iterations: int | None
) -> None:
    """Print the results of a training run, its files, and the commands that may come next."""
    show(metrics)
    directory = directory.relative_to(Path.cwd()) if directory.is_relative_to(Path.cwd()) else directory
    found = sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
    print(f"In {directory}: {', '.join(found)}. Next:")
    for command in following(directory, overrides, name, iterations, set(found)):
        print(f"  {shlex.join(command)}")


def following(
    directory: Path, overrides: Sequence[str], name: str, iterations: int | None, found: set[str]
) -> list[list[str]]:
    """Return the possible next commands after a run: evaluate, export, report, train for twice as long."""
    commands, model = [["tagrpo-report", str(directory)]], directory / "model"
    if "model" in found:
        carried = [o for o in overrides if re.split("[./=]", o.lstrip("+~"), maxsplit=1)[0] in CARRIED]
        carried = [o for o in carried if not o.startswith(("model=", "model.path="))]
        pretrained = ["model=pretrained", override("model.path", model)]
        commands.insert(0, ["tagrpo-eval", override("name", name), *carried, *pretrained])
    elif "checkpoints" in found:
        commands.insert(0, ["tagrpo-export", str(directory), str(model)])
    if "checkpoints" in found and iterations:
        own = [override("hydra.run.dir", directory), "resume=auto", f"iterations={2 * iterations}"]
        left_out = ("iterations=", "resume=", "search=")  # a search is for a sweep, not for one of its runs
        commands.append(["tagrpo-train", *(o for o in overrides if not o.startswith(left_out)), *own])
    return commands
