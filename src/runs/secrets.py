"""Keeps keys and passwords out of files: they belong in environment variables, which are never written down."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from .files import write_text

SECRET_NAME = re.compile(
    r"(.*_)?(api_?key|access_key|secret_key|private_key|(access|auth|api|hf|hub|bearer|refresh|session|wandb|github)_token"
    r"|wandb_key|secret|password|passwd|passphrase|credentials?)|token|authorization|proxy_authorization",
    re.IGNORECASE,
)
"""Names of settings whose values are secret. Not `eos_token` or `max_new_tokens`."""
SECRET_VARIABLE = re.compile(r".*(API_?KEY|ACCESS_KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)", re.IGNORECASE)
REMOVED = "<removed>"
SHORTEST = 8
"""Shorter values of environment variables are not searched for: they would be found inside words."""

_SPELLED = re.compile(
    r"\b[spr]k-(?=[\w-]{0,64}\d)[\w-]{8,}|\bhf_[^\W_]{30,}|\bgh[opsur]_\w{20,}|\bgithub_pat_\w{20,}|\bwandb_v1_\w{16,}"
    r"|\bAIza[\w-]{30,}|\bAKIA[A-Z0-9]{12,}"
)
"""Keys of known services, told by their spelling."""
_PASSWORD = re.compile(r"(://[^/@\s:]{0,256}:)[^/@\s$<]{1,256}@")
_PAIR = re.compile(
    r"(?<![\w-])(?P<name>[\w-]{1,64})[\"']?\s{0,8}[:=]\s{0,8}[\"']?(?:(?i:bearer|basic)\s{1,8})?"
    r"(?P<value>(?![{\[])[^\s,&?}\"'\]]{1,4096})"
)
"""`name=value` and `name: value` inside of a text: overrides, headers, queries of URLs."""
_REFERENCE = re.compile(r"(?<!\\)\$\{oc\.env:")


def _named_secret(name: str, text: str) -> bool:
    return bool(text and "${" not in text and SECRET_NAME.fullmatch(name.replace("-", "_")))


def redacted(content: Any, name: str = "") -> Any:
    """A copy without secrets: without values of settings whose names say so, and those of such environment variables.

    >>> redacted({"api_key": "abc", "model": "qwen", "overrides": ["seed=1", "+logger.api_key=abc"]})
    {'api_key': '<removed>', 'model': 'qwen', 'overrides': ['seed=1', '+logger.api_key=<removed>']}
    """
    if isinstance(content, Mapping):
        return {key: redacted(value, str(key)) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [redacted(value, name) for value in content]
    if not isinstance(content, str):
        return content
    if _named_secret(name, content):
        return REMOVED
    for variable, value in os.environ.items():
        if SECRET_VARIABLE.fullmatch(variable) and len(value) >= SHORTEST:
            content = content.replace(value, REMOVED)
    content = _PASSWORD.sub(rf"\1{REMOVED}@", _SPELLED.sub(REMOVED, content))
    return _PAIR.sub(_without_value, content)


def _without_value(pair: re.Match[str]) -> str:
    secret = _named_secret(pair["name"], pair["value"])
    return pair[0].removesuffix(pair["value"]) + REMOVED if secret else pair[0]


def literal_secrets(content: Any, path: str = "", name: str = "") -> Iterator[str]:
    """Paths of settings that hold a secret in plain text.

    >>> list(literal_secrets({"overrides": ["seed=1", "+logger.api_key=abc"], "db": {"password": "x"}}))
    ['overrides.1', 'db.password']
    """
    if isinstance(content, Mapping | list | tuple):
        for key, value in content.items() if isinstance(content, Mapping) else enumerate(content):
            inner = str(key) if isinstance(content, Mapping) else name
            yield from literal_secrets(value, f"{path}.{key}" if path else str(key), inner)
    elif redacted(content, name) != content:
        yield path


def refuse_secret_arguments(arguments: Sequence[str]) -> None:
    """End the program, naming the settings, when its arguments hold a secret: Hydra would print and copy them."""
    _leave([redacted(argument).partition("=")[0] for argument in arguments if redacted(argument) != argument])


def _leave(found: list[str]) -> None:
    if found:
        sys.exit(
            f"Expected no secrets among the settings, but got {', '.join(found)}. Settings are written to files and "
            "logs. Export the key as an environment variable (W&B, OpenAI and the Hugging Face hub read theirs there), "
            "or refer to it as ${oc.env:NAME}."
        )


def unread(content: Any) -> Any:
    """A copy whose references to environment variables stay as they are written, for who reads it next."""
    if isinstance(content, Mapping):
        return {key: unread(value) for key, value in content.items()}
    if isinstance(content, list):
        return [unread(value) for value in content]
    return _REFERENCE.sub(r"\\\g<0>", content) if isinstance(content, str) else content


def refuse_secrets(cfg: DictConfig, output_directory: str | Path) -> None:
    """End the program when a secret was given as a setting, after deleting the copies that Hydra has made of it."""
    found = list(literal_secrets(OmegaConf.to_container(cfg, resolve=False)))
    if redacted(str(output_directory)) != str(output_directory):  # a name may refer to a variable
        found.append("the name of the run's directory")
    if found:
        shutil.rmtree(Path(output_directory) / ".hydra", ignore_errors=True)
    _leave(found)


def save_resolved(cfg: DictConfig, directory: Path) -> None:
    """Write the configuration that runs, every interpolation resolved, to `config.yaml`. Secrets are left out."""
    resolved: Any = redacted(OmegaConf.to_container(cfg, resolve=True))
    write_text(directory / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(resolved)))
