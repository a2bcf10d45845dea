"""How every console script begins, and how it ends when its settings are wrong."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..runs.files import write_text
from ..runs.secrets import redacted, refuse_secret_arguments

WRONG_USE = (ValueError, TypeError, OSError, ImportError, RuntimeError, HydraException, OmegaConfBaseException)
"""Errors that settings, files or the machine cause before a run begins."""


def entry_point(config: str | None = None) -> Callable[[Callable[..., Any]], Callable[[], Any]]:
    """Turn a function into a console script that refuses secrets; with a `config`, pass it and show it for `--help`."""

    def decorate(main: Callable[..., Any]) -> Callable[[], Any]:
        if config is not None:
            folder, _, name = f"configs/{config}".rpartition("/")
            place = f"pkg://tagrpo.{folder.replace('/', '.')}"
            main = hydra.main(config_path=place, config_name=name, version_base="1.3")(main)

        @wraps(main)
        def run() -> Any:
            refuse_secret_arguments(sys.argv[1:])
            if config is not None:
                import tagrpo.configs  # noqa: F401  Hydra's completion lists options before it imports them

                if {"--help", "-h"} & set(sys.argv[1:]):
                    from .help import show_help

                    return show_help(config, [word for word in sys.argv[1:] if re.fullmatch(r"[\w/]+", word)])
            return main()

        return run

    return decorate


def note_command(directory: Path) -> None:
    """Write the command of a run that begins to `.hydra/hydra.yaml`, in the form that Hydra gives it."""
    noted = OmegaConf.create({"hydra": OmegaConf.to_container(HydraConfig.get(), resolve=False)})
    write_text(directory / ".hydra" / "hydra.yaml", OmegaConf.to_yaml(noted))


@contextmanager
def explained() -> Iterator[None]:
    """Turn an error of settings into its message and an exit; HYDRA_FULL_ERROR=1 shows the traceback."""
    try:
        yield
    except WRONG_USE as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        cause = error.__cause__ if isinstance(error, HydraException) and error.__cause__ else error
        part = str(error).partition("full_key: ")[2] if cause is not error else ""
        where = f"\n(Its settings are those of {part}.)" if part else ""
        hint = "" if str(cause).startswith("Expected") else "\n(HYDRA_FULL_ERROR=1 shows where.)"
        sys.exit(redacted(f"{str(cause) or type(cause).__name__}{where}{hint}"))
