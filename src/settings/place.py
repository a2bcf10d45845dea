"""Check and make the directory of a run before Hydra does, since Hydra's errors would end in a traceback."""

import sys
from pathlib import Path, PurePath
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException


class MakeDirectory(Callback):
    """Hydra callback that makes the directory of a run or a sweep; the program ends if that is impossible."""

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Check `name`, and make `hydra.run.dir`."""
        _leave_if_wrong(config, "hydra.run.dir")

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Check `name`, and make `hydra.sweep.dir`."""
        _leave_if_wrong(config, "hydra.sweep.dir")


def _leave_if_wrong(config: DictConfig, setting: str) -> None:
    """End the program with a message on an error; Hydra only warns if a callback raises an exception."""
    try:
        check_name(OmegaConf.select(config, "name"))
        make_directory(OmegaConf.select(config, setting), setting)
    except (ValueError, OSError, OmegaConfBaseException) as error:
        sys.exit(str(error))


def check_name(name: object) -> None:
    """Check that a run's name is the name of a folder inside `runs`.

    Raises:
        ValueError: if the name is empty, absolute, or neither text nor number, or has `..` or unprintable
            characters.
    """
    text = str(name)
    parts = PurePath(text).parts
    plain = isinstance(name, str | int | float) and not isinstance(name, bool) and text.isprintable()
    if not plain or not parts or ".." in parts or text.startswith(("/", "~")):
        raise ValueError(
            f"Expected `name` to name a folder inside of runs, such as grpo or mine/grpo, but got {name!r}. "
            "Correct `name`; hydra.run.dir=… puts a run anywhere else."
        )


def make_directory(path: object, setting: str) -> None:
    """Make a directory and its parents.

    Raises:
        ValueError: if the directory cannot be made. The message names `setting` and the reason.
    """
    try:
        if path is None or not str(path):
            raise ValueError("it is empty")
        Path(str(path)).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        shown = str(path) if len(str(path)) <= 120 else f"{str(path)[:120]}…"
        raise ValueError(
            f"Expected {setting} to be a directory that can be made, but {shown!r} cannot: {reason}. Correct "
            f"{setting} or `name`."
        ) from error
