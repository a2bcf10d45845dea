"""Keeps keys and passwords out of files: they belong in environment variables, which are never written down."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from .files import write_text

SECRET_NAME = re.compile(
    r"(^|.*_)(api_?key|access_key|secret_key|private_key|(access|auth|api|hf|bearer)_token|secret|password|passwd|"
    r"credentials?)|token|authorization",
    re.IGNORECASE,
)
"""Names of settings, and of environment variables, whose values are secret. Not `eos_token` or `max_new_tokens`."""
SECRET_VARIABLE = re.compile(r".*(API_?KEY|ACCESS_KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)", re.IGNORECASE)
REMOVED = "<removed>"
SHORTEST = 8
"""Shorter values of environment variables are not searched for: they would be found inside words."""


def literal_secrets(content: Any, path: str = "") -> Iterator[str]:
    """Paths of settings that hold a secret in plain text, unlike an interpolation such as `${oc.env:OPENAI_API_KEY}`.

    Items of lists are also read as overrides of other runs.

    >>> list(literal_secrets({"logger": {"api_key": "abc", "max_tokens": 5}, "server": {"api_key": "${oc.env:KEY}"}}))
    ['logger.api_key']
    >>> list(literal_secrets({"overrides": ["seed=1", "+logger.api_key=abc"]}))
    ['overrides.logger.api_key']
    """
    for key, value in content.items() if isinstance(content, Mapping) else enumerate(content):
        name, text = str(key), value
        if isinstance(key, int) and isinstance(value, str) and "=" in value:
            name, _, text = value.lstrip("+~").partition("=")
        here = f"{path}.{name}" if path else name
        if isinstance(text, Mapping | list | tuple):
            yield from literal_secrets(text, here)
        elif isinstance(text, str) and text and "${" not in text and SECRET_NAME.fullmatch(name.rsplit(".", 1)[-1]):
            yield here


def redacted(content: Any) -> Any:
    """A copy without secrets: without values of settings whose names say so, and those of such environment variables.

    >>> redacted({"api_key": "abc", "model": "qwen"})
    {'api_key': '<removed>', 'model': 'qwen'}
    """
    values = [value for name, value in os.environ.items() if SECRET_VARIABLE.fullmatch(name) and len(value) >= SHORTEST]
    return _redacted(content, values)


def _redacted(content: Any, values: list[str], name: str = "") -> Any:
    if isinstance(content, Mapping):
        return {key: _redacted(value, values, str(key)) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_redacted(value, values, name) for value in content]
    if not isinstance(content, str) or not content:
        return content
    if SECRET_NAME.fullmatch(name):
        return REMOVED
    for value in values:
        content = content.replace(value, REMOVED)
    return content


def refuse_secrets(cfg: DictConfig, output_directory: str | Path) -> None:
    """End the program when a secret was given as a setting, after deleting the copies that Hydra has made of it.

    Raises:
        SystemExit: naming the settings, not their values. Hydra would print the overrides with any other exception.
    """
    found = list(literal_secrets(OmegaConf.to_container(cfg, resolve=False)))
    if not found:
        return
    shutil.rmtree(Path(output_directory) / ".hydra", ignore_errors=True)
    sys.exit(
        f"Expected no secrets among the settings, but got {', '.join(found)}. Settings are written to files and logs. "
        "Export the key as an environment variable (W&B, OpenAI and the Hugging Face hub read theirs there), or refer "
        "to it as ${oc.env:NAME}."
    )


def save_resolved(cfg: DictConfig, directory: Path) -> None:
    """Write the configuration that runs, every interpolation resolved, to `config.yaml`. Secrets are left out."""
    resolved: Any = redacted(OmegaConf.to_container(cfg, resolve=True))
    write_text(directory / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(resolved)))
