"""Keeps keys and passwords out of files: they belong in environment variables, which are never written down."""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from .files import write_text

SECRET_NAME = re.compile(
    r"(.*_)?(api_?key|access_key|secret_key|private_key|(access|auth|api|hf|hub|bearer|refresh|session|wandb|github)_token"
    r"|secret|password|passwd|passphrase|pwd|credentials?|cookie)|token|authorization|proxy_authorization",
    re.IGNORECASE,
)
"""Names of settings whose values are secret. Not `eos_token` or `max_new_tokens`."""
SECRET_VARIABLE = re.compile(r".*(API_?KEY|ACCESS_KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)", re.IGNORECASE)
REMOVED = "<removed>"
SHORTEST = 8  # shorter values of environment variables are not searched for: they would be found inside words

_PERHAPS = re.compile(r"(.*_)?key", re.IGNORECASE)  # such a name's value is secret if it is _LONG: no key to sort by
_LONG = re.compile(r"(?=\D*\d)\S{8,}")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_SPELLED = re.compile(
    r"(?P<known>\b[spr]k-(?=[\w-]{0,64}\d)[\w-]{8,}|\bhf_[^\W_]{30,}|\bgh[opsur]_\w{20,}|\bgithub_pat_\w{20,}"
    r"|\bglpat-[\w-]{16,}|\bwandb_v1_\w{16,}|\bxox[abpr]-[\w-]{10,}|\bAIza[\w-]{30,}|\bAKIA[A-Z0-9]{12,}"
    r"|\beyJ[\w-]{8,512}\.[\w-]{8,})"
    r"|://[^/@\s:]{0,256}:(?P<password>[^/@\s$<]{1,256})@"
    r"|[?&](?:\w{0,64}(?:key|token|secret|password)|sig|signature|auth)=(?P<query>[^&#\s$<]{1,2048})"
    r"|(?i:\bbearer\s{1,8}(?P<header>(?=\S{0,256}\d)[\w.~+/=-]{8,})|\bbasic\s{1,8}(?P<basic>[\w+/]{8,1024}={1,2}))"
)
"""Secrets recognised by their spelling: keys of known services, and secrets inside of URLs and headers."""
_REFERENCE = re.compile(r"(?<!\\)\$\{oc\.env:")
_PAIR = re.compile(r"([\w.@/-]{1,64})[\"']?\s{0,8}[:=]\s{0,8}[\"']?(?![{\[])([^\s,}\"'\]]{1,4096})")


def is_secret(name: str, value: object) -> bool:
    """Whether a setting holds a secret in plain text.

    >>> is_secret("logger.wandb.api_key", "abc"), is_secret("name", "sk-4f9a0c7d21"), is_secret("eos_token", "</s>")
    (True, True, False)
    """
    if isinstance(value, str) and (_SPELLED.search(value) or any(secret in value for secret in _of_environment())):
        return True
    return _named_secret(name, value)


def _named_secret(name: str, value: object) -> bool:
    last, text = re.split(r"[./@]", name)[-1].replace("-", "_"), str(value)
    short_number = isinstance(value, int) and value < 10 ** (SHORTEST - 1)
    if not isinstance(value, str | int) or short_number or not text or "${" in text:
        return False
    if last.endswith("_env"):  # the name of a variable, not its value
        return not _VARIABLE.fullmatch(text)
    return bool(SECRET_NAME.fullmatch(last) or (_PERHAPS.fullmatch(last) and _LONG.fullmatch(text)))


def _of_environment() -> list[str]:
    named = [(name, value) for name, value in os.environ.items() if len(value) >= SHORTEST]
    secret = (v for n, v in named if SECRET_VARIABLE.fullmatch(n) or (_PERHAPS.fullmatch(n) and _LONG.fullmatch(v)))
    return sorted(secret, key=len, reverse=True)  # one may begin with another


def literal_secrets(content: Any, path: str = "") -> Iterator[str]:
    """Paths of settings that hold a secret in plain text; items of lists are also read as overrides and as headers.

    >>> list(literal_secrets({"overrides": ["seed=1", "+logger.api_key=abc"]}))
    ['overrides.logger.api_key']
    """
    for key, value in content.items() if isinstance(content, Mapping) else enumerate(content):
        name = str(key)
        here = f"{path}.{name}" if path else name
        if isinstance(value, Mapping | list | tuple):
            yield from literal_secrets(value, here)
        else:
            pairs = secret_pairs(value) if isinstance(value, str) and isinstance(key, int) else []
            yield from [f"{path}.{inner}" if path else inner for inner in pairs]
            if not pairs and is_secret(name, value):
                yield here


def secret_pairs(text: str) -> list[str]:
    """Among all `name=value` and `name: value` in a text, the names whose values are secrets."""
    pairs = [(name.lstrip("+~"), value) for name, value in _PAIR.findall(text)]
    return [name for name, value in pairs if is_secret(name, value)]


def refuse_secret_arguments(arguments: Sequence[str]) -> None:
    """End the program, naming the settings, when its arguments hold a secret: Hydra would print and copy them."""
    found = [name for argument in arguments for name in secret_pairs(argument)]
    _leave(found or ["an argument" for argument in arguments if is_secret("", argument)])


def _leave(found: list[str]) -> None:
    if found:
        sys.exit(
            f"Expected no secrets among the settings, but got {', '.join(dict.fromkeys(found))}. Settings are written "
            "to files and logs. Export the key as an environment variable (W&B, OpenAI and the Hugging Face hub read "
            "theirs there), or refer to it as ${oc.env:NAME}."
        )


def unread(content: Any) -> Any:
    """A copy with escaped references to environment variables, so that the run that gets them resolves them."""
    if isinstance(content, Mapping):
        return {key: unread(value) for key, value in content.items()}
    if isinstance(content, list):
        return [unread(value) for value in content]
    return _REFERENCE.sub(r"\\\g<0>", content) if isinstance(content, str) else content


def redacted(content: Any, name: str = "") -> Any:
    """A copy without secrets, which are recognised by a setting's name, by spelling, or from environment variables.

    >>> redacted({"api_key": "abc", "model": "qwen"})
    {'api_key': '<removed>', 'model': 'qwen'}
    """
    if isinstance(content, Mapping):
        return {key: redacted(value, str(key)) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [redacted(value, name) for value in content]
    if _named_secret(name, content):
        return REMOVED
    if not isinstance(content, str):
        return content
    for value in _of_environment():
        content = content.replace(value, REMOVED)
    return _SPELLED.sub(lambda match: match[0].replace(match[match.lastgroup or 0], REMOVED), content)


def refuse_secrets(cfg: DictConfig, output_directory: str | Path) -> None:
    """End the program when a setting holds a secret, after deleting a directory that Hydra has named after it."""
    directory = Path(output_directory)
    found = list(literal_secrets(OmegaConf.to_container(cfg, resolve=False)))
    if is_secret("", str(directory)):  # a name that refers to a variable is resolved before it names a directory
        found.append("the name of the run's directory")
    if found:
        for log in directory.glob("*.log"):
            if not log.stat().st_size:
                log.unlink()
        with suppress(OSError):  # a directory holds other files
            directory.rmdir()
            while is_secret("", str(directory := directory.parent)):
                directory.rmdir()
    _leave(found)


def save_resolved(cfg: DictConfig, directory: Path) -> None:
    """Write the configuration to `config.yaml`, with interpolations resolved and secrets removed."""
    resolved: Any = redacted(OmegaConf.to_container(cfg, resolve=True))
    write_text(directory / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(resolved)))
