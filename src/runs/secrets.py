"""Keep keys and passwords out of files: they belong in environment variables, which are never saved."""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from omegaconf import DictConfig, OmegaConf

from .files import write_text

REMOVED = "<removed>"
SHORTEST = 8
"""Minimum length in characters of a value that is searched for in texts; shorter values occur in words."""
_SECRET_NAME = re.compile(
    r".*(secrets?(_value)?|passwords?|passwd|passphrase|api_?keys?)|(.*_)?(pwd|credentials?|cookies?|authorization)"
    r"|(.*_)?(access|account|auth|encryption|private|secret|service|session|shared|signing|storage|subscription)_?keys?"
    r"|(.*_)?(access|api|auth|bearer|bot|github|gitlab|hf|hub|id|oauth|refresh|sas|security|session|slack|wandb)_?tokens?"
    r"|((auth|basic|db|http|proxy|smtp|user)_)?pass|(basic|http|proxy)_auth|bearer|connection_string|jwt|passcode|token"
)
"""Names of secret settings, in snake case. `eos_token` and `max_new_tokens` do not match."""
_PERHAPS = re.compile(r"(.*_)?(key|token)")  # secret if the value looks like one: no key to sort by, no `</s>`
_LIKE_A_KEY = re.compile(r"(?!<)(?=\D*\d)\S{8,}")
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[-\s]+")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_FORMATS = [
    re.compile(pattern)
    for pattern in (
        r"\b(?:[spr]|cs)k-(?:(?=[\w-]{0,64}\d)[\w-]{8,}|[\w-]{32,})",  # OpenAI, Anthropic, OpenRouter, Cerebras
        r"\b(?:[spr]k|whsec)_(?:live_|test_)?[^\W_]{20,}",  # Stripe
        r"\b(?:gsk|r8|fw|tgp_v1|dop_v1|npm|lin_api|ntn)_[\w-]{20,}",  # Groq, Replicate, Fireworks, Together, …
        r"\b(?:xai|pplx|nvapi|pypi)-[\w-]{20,}",  # xAI, Perplexity, NVIDIA, PyPI
        r"\b(?:hf|api_org)_[^\W_]{20,}",  # Hugging Face
        r"\bgh[opsur]_\w{20,}|\bgithub_pat_\w{20,}|\bgl[a-z]{2,5}-[\w.-]{16,}",  # GitHub, GitLab
        r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}|(?i:\baws.{0,20}?[\"'=:\s])([A-Za-z0-9/+]{40})(?![\w/+])",  # AWS
        r"\bAIza[\w-]{30,}|\bya29\.[\w-]{20,}|\bGOCSPX-[\w-]{20,}",  # Google
        r"\bxox[a-z](?:\.xox[a-z])?-[\w-]{10,}|\bxapp-[\w-]{10,}|hooks\.slack\.com/services/([\w/]{20,})",  # Slack
        r"\bwandb_v1_\w{16,}|(?i:\bwandb.{0,20}?)\b([0-9a-f]{40})\b",  # Weights & Biases
        r"\bSG\.[\w-]{16,}\.[\w-]{16,}|\bdapi[0-9a-f]{32}\b|\b\d{8,10}:AA[\w-]{30,}",  # SendGrid, Databricks, Telegram
        r"\beyJ[\w-]{8,4096}\.[\w-]{8,}(?:\.[\w-]*)?",  # JSON web tokens
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[\w+/=\s\\:,.-]*",  # PEM and PGP
        r"://[^/@\s:]{0,256}:((?!<removed>@)(?:[^/\s$]|\$(?!\{)){1,256})@",  # passwords in URLs
        r"://((?=[^/@\s]{0,256}\d)[^/@\s:$<]{16,256})@",  # keys as users in URLs
        r"[?&;](?i:[\w.-]{0,64}(?:key|token|secret|password)|sig|signature|auth)=([^&#\s$<\"']{1,2048})",
        r"(?i:\bbearer\s{1,8})((?=\S{0,256}\d)[\w.~+/=-]{8,})|(?i:\bbasic\s{1,8})([\w+/]{8,1024}={1,2})",
        r"(?i:\blogin\s{1,8}\S{1,256}\s{1,8}password\s{1,8})(?!<removed>)(\S{1,256})",  # .netrc
        r"(?:AccountKey|SharedAccessKey)=([\w+/=]{20,})",  # connection strings of Azure
    )
]
"""Published formats of keys. If a pattern has a group, the group is the secret."""
_REFERENCE = re.compile(r"(?<!\\)\$\{oc\.env:")
_PAIR = re.compile(
    r"(?P<name>[\w.@/+~-]{1,64})\\?[\"']?\s{0,8}[:=]\s{0,8}(?:(?i:bearer|basic|token|apikey|digest|negotiate)\s{1,8})?"
    r"(?:\\?\"(?P<double>[^\"\\]{1,4096})|'(?P<single>[^']{1,4096})"
    r"|(?![{\[\"'])(?P<bare>(?:[^\s,;}\"'\]]|;(?!\s)|;\s(?=[^\s=]{1,64}=)){1,4096}))"
)
"""`name=value`, `name: value` and `"name": "value"`, as in overrides, headers and JSON."""


def is_secret(name: str, value: object) -> bool:
    """Check whether a setting is a secret in plain text.

    >>> is_secret("logger.wandb.api_key", "abc"), is_secret("name", "sk-4f9a0c7d21"), is_secret("eos_token", "</s>")
    (True, True, False)
    """
    return bool(redacted(value, name) != value)


def redacted(content: Any, name: str = "") -> Any:
    """Return a copy without secrets, found by setting name, by format, or as values of environment variables.

    Names are matched in any spelling and at any depth: everything below `credentials` is secret. Values of headers are
    found in mappings, pairs and texts.

    Args:
        content: Settings: mappings, lists, and leaves of any type.
        name: The name of the setting that has this content.

    >>> redacted({"clientSecret": "abc", "headers": [["X-Api-Key", "abc"], "Cookie: abc"], "model": "qwen"})
    {'clientSecret': '<removed>', 'headers': [['X-Api-Key', '<removed>'], 'Cookie: <removed>'], 'model': 'qwen'}
    """
    if isinstance(content, Mapping):
        header = next((content[key] for key in ("name", "key", "header") if isinstance(content.get(key), str)), "")
        names = {key: header if header and key == "value" else str(key) for key in content}
        return {key: redacted(value, _inherited(name, names[key])) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [[item[0], redacted(item[1], item[0])] if _is_pair(item) else redacted(item, name) for item in content]
    if _named_secret(name, content):
        return REMOVED
    if not isinstance(content, str):
        return content
    return _PAIR.sub(_without_value, without_secrets(content))


def for_terminal(text: str) -> str:
    r"""Return a text for terminals and logs: redacted, and with all control characters but line ends escaped.

    >>> for_terminal("slow\x1b[2J\nkey sk-4f9a0c7d21")
    'slow\\x1b[2J\nkey <removed>'
    """
    from ..foreign import printable  # imports pydantic

    lines = str(redacted(text)).split("\n")
    return "\n".join(printable(line) for line in lines)


def without_secrets(text: str, *known: str) -> str:
    """Remove secrets from a text: keys by their format, values of secret variables, and `known` values.

    >>> without_secrets("Incorrect key: sk-4f9a0c7d21")
    'Incorrect key: <removed>'
    """
    for value in sorted({*known, *_of_environment(frozenset(os.environ.items()))}, key=len, reverse=True):
        if len(value) >= SHORTEST:  # the longest first: one may begin with another
            text = text.replace(value, REMOVED).replace(quote(value, safe=""), REMOVED)
    for pattern in _FORMATS:
        text = pattern.sub(lambda match: match[0].replace(match[match.lastindex or 0], REMOVED), text)
    return text


@lru_cache(maxsize=1)
def _of_environment(variables: frozenset[tuple[str, str]]) -> list[str]:
    """Return the values of variables whose names mark them as secret, except PWD, the working directory."""
    named = [(name, value) for name, value in variables if name != "PWD"]
    return [value for name, value in named if _named_secret(name, value) or name.upper().endswith("TOKEN")]


def _named_secret(name: str, value: object) -> bool:
    """Check whether the name of a setting marks its value as secret."""
    short_number = isinstance(value, int) and value < 10 ** (SHORTEST - 1)
    text = str(value)
    if not isinstance(value, str | int) or short_number or not text or "${" in text:
        return False
    last = _snake(name)
    if last.endswith("_env"):  # the name of a variable, not its value
        return not _VARIABLE.fullmatch(text)
    return bool(_SECRET_NAME.fullmatch(last) or (_PERHAPS.fullmatch(last) and _LIKE_A_KEY.fullmatch(text)))


@lru_cache(maxsize=4096)
def _snake(name: str) -> str:
    """Return the last part of a setting's name in snake case: `api_key` for `server.apiKey`, `X.API-Key`."""
    return _WORDS.sub("_", re.split(r"[./@]", name)[-1]).lower()


def _inherited(parent: str, name: str) -> str:
    below_a_secret = _SECRET_NAME.fullmatch(_snake(parent)) and not _snake(name).endswith("_env")
    return parent if below_a_secret else name


def _is_pair(item: object) -> bool:
    return isinstance(item, list | tuple) and len(item) == 2 and all(isinstance(part, str) for part in item)


def _without_value(match: re.Match[str]) -> str:
    kind = match.lastgroup or "bare"
    if not _SECRET_NAME.fullmatch(_snake(match["name"])) or not _named_secret(match["name"], match[kind]):
        return match[0]
    start, end = (place - match.start() for place in match.span(kind))
    return match[0][:start] + REMOVED + match[0][end:]


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
        yield from [f"{path}.{name}" if path else name for name in pairs] or _changed(before[key], after[key], here)


def secret_pairs(text: str) -> list[str]:
    """Return the names of secrets among all `name=value` and `name: value` in a text."""
    pairs = [(match["name"].lstrip("+~"), match[match.lastgroup or "bare"]) for match in _PAIR.finditer(text)]
    return [name for name, value in pairs if is_secret(name, value)]


def refuse_secret_arguments(arguments: Sequence[str]) -> None:
    """End the program if its arguments contain a secret, which Hydra would print and copy.

    The message names the settings.
    """
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
    """Return a copy with references to environment variables escaped, so that a started run resolves them."""
    if isinstance(content, Mapping):
        return {key: unread(value) for key, value in content.items()}
    if isinstance(content, list):
        return [unread(value) for value in content]
    return _REFERENCE.sub(r"\\\g<0>", content) if isinstance(content, str) else content


def refuse_secrets(cfg: DictConfig, output_directory: str | Path) -> None:
    """End the program if a setting is a secret, after deleting a directory that Hydra has named after it."""
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
