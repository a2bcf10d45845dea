"""Keep keys and passwords out of files: they belong in environment variables, which are never saved."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ..files import write_text
from ..redaction import is_secret, redacted, secret_pairs

_REFERENCE = re.compile(r"(?<!\\)\$\{oc\.env:")


def literal_secrets(content: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of settings with a secret in plain text; list items are also parsed as overrides.

    >>> list(literal_secrets({"overrides": ["seed=1", "+logger.api_key=abc"]}))
    ['overrides.logger.api_key']
    """
    yield from _changed(content, redacted(content), path)


def _changed(before: Any, after: Any, path: str) -> Iterator[str]:
    """Yield the paths at which two contents of equal structure differ."""
    if not isinstance(before, Mapping | list | tuple):
        if before is not after and before != after:
            yield path
        return
    for key in before if isinstance(before, Mapping) else range(len(before)):
        here = f"{path}.{key}" if path else str(key)
        pairs = secret_pairs(before[key]) if isinstance(key, int) and isinstance(before[key], str) else []
        yield from [f"{path}.{name}" if path else name for name in pairs] or _changed(
            before[key], after[key], here
        )


def refuse_secret_arguments(arguments: Sequence[str]) -> None:
    """End the program if its arguments contain a secret, which Hydra would print and copy.

    The message names the settings.
    """
    found = [name for argument in arguments for name in secret_pairs(argument)]
    _leave(found or ["an argument" for argument in arguments if is_secret("", argument)])


def _leave(found: list[str]) -> None:
    if found:
        sys.exit(
            f"Expected no secrets among the settings, but got {', '.join(dict.fromkeys(found))}. Settings "
            "are written to files and logs. Export the key as an environment variable (W&B, OpenAI and the "
            "Hugging Face hub read theirs there), or refer to it as ${oc.env:NAME}."
        )


def unread(content: Any) -> Any:
    """Return a copy of settings in which `${oc.env:…}` is escaped.

    The variable is then read by the run that gets the settings, not by the present process.
    """
    if isinstance(content, Mapping):
        return {key: unread(value) for key, value in content.items()}
    if isinstance(content, list):
        return [unread(value) for value in content]
    return _REFERENCE.sub(r"\\\g<0>", content) if isinstance(content, str) else content


def refuse_secrets(cfg: DictConfig, output_directory: str | Path) -> None:
    """End the program if a setting contains a secret.

    The run's directory, which Hydra may have named after the secret, is deleted first if it has no content.
    """
    directory = Path(output_directory)
    found = list(literal_secrets(OmegaConf.to_container(cfg, resolve=False)))
    # a name that refers to a variable is resolved before it names a directory
    if is_secret("", str(directory)):
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
