"""Remove keys and passwords from texts and settings before they are printed, logged or written to files."""

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

REMOVED = "<removed>"
SHORTEST = 8
"""Smallest length, in characters, of a value that is searched for in texts; shorter values occur in words."""
_SECRET_NAME = re.compile(
    r".*(secrets?(_value)?|passwords?|passwd|passphrase|api_?keys?)|(.*_)?(pwd|credentials?|cookies?|authorization)"
    r"|(.*_)?(access|account|auth|encryption|private|secret|service|session|shared|signing|storage|subscription)_?keys?"
    r"|(.*_)?(access|api|auth|bearer|bot|github|gitlab|hf|hub|id|oauth|refresh|sas|security|session|slack|wandb)_?tokens?"
    r"|((auth|basic|db|http|proxy|smtp|user)_)?pass|(basic|http|proxy)_auth|bearer|connection_string|jwt|passcode|token"
)
"""Names of settings, in snake case, whose values are secret. Not `eos_token` or `max_new_tokens`."""
# secret if the value looks like one: no key to sort by, no `</s>`
_PERHAPS = re.compile(r"(.*_)?(key|token)")
_LIKE_A_KEY = re.compile(r"(?!<)(?=\D*\d)\S{8,}")
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[-\s]+")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_FORMATS = [
    re.compile(pattern)
    for pattern in (
        # OpenAI, Anthropic, OpenRouter, Cerebras
        r"\b(?:[spr]|cs)k-(?:(?=[\w-]{0,64}\d)[\w-]{8,}|[\w-]{32,})",
        r"\b(?:[spr]k|whsec)_(?:live_|test_)?[^\W_]{20,}",  # Stripe
        # Groq, Replicate, Fireworks, Together, …
        r"\b(?:gsk|r8|fw|tgp_v1|dop_v1|npm|lin_api|ntn)_[\w-]{20,}",
        r"\b(?:xai|pplx|nvapi|pypi)-[\w-]{20,}",  # xAI, Perplexity, NVIDIA, PyPI
        r"\b(?:hf|api_org)_[^\W_]{20,}",  # Hugging Face
        r"\bgh[opsur]_\w{20,}|\bgithub_pat_\w{20,}|\bgl[a-z]{2,5}-[\w.-]{16,}",  # GitHub, GitLab
        # AWS
        r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}|(?i:\baws.{0,20}?[\"'=:\s])([A-Za-z0-9/+]{40})(?![\w/+])",
        r"\bAIza[\w-]{30,}|\bya29\.[\w-]{20,}|\bGOCSPX-[\w-]{20,}",  # Google
        # Slack
        r"\bxox[a-z](?:\.xox[a-z])?-[\w-]{10,}|\bxapp-[\w-]{10,}|hooks\.slack\.com/services/([\w/]{20,})",
        r"\bwandb_v1_\w{16,}|(?i:\bwandb.{0,20}?)\b([0-9a-f]{40})\b",  # Weights & Biases
        # SendGrid, Databricks, Telegram
        r"\bSG\.[\w-]{16,}\.[\w-]{16,}|\bdapi[0-9a-f]{32}\b|\b\d{8,10}:AA[\w-]{30,}",
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
"""Published formats of keys; if a pattern has a group, the group is the secret."""
_PAIR = re.compile(
    r"(?<![\w.@/+~-])(?P<name>[\w.@/+~-]++)\\?[\"']?\s{0,8}[:=]\s{0,8}(?:(?i:bearer|basic|token|apikey|digest|negotiate)\s{1,8})?"
    r"(?:\\?\"(?P<double>[^\"\\]{1,4096})|'(?P<single>[^']{1,4096})"
    r"|(?![{\[\"'])(?P<bare>(?:[^\s,;}\"'\]]|;(?!\s)|;\s(?=[^\s=]{1,64}=)){1,4096}))"
)
"""`name=value`, `name: value` and `"name": "value"`, as in overrides, headers and JSON.

The name is a whole word, matched possessively: otherwise a long word would be tried from each of its
characters.
"""


def is_secret(name: str, value: object) -> bool:
    """Check whether a setting contains a secret in plain text.

    >>> is_secret("logger.wandb.api_key", "abc"), is_secret("name", "sk-4f9a0c7d21"), is_secret("eos_token", "</s>")
    (True, True, False)
    """
    return bool(redacted(value, name) != value)


def redacted(content: Any, name: str = "") -> Any:
    """Return a copy of `content` without secrets.

    Secrets are found by the name of a setting, by their format, or as the value of an environment variable.
    Names are matched in any spelling and at any depth: everything below `credentials` is secret. Values of
    headers are found in mappings, pairs and texts.

    Args:
        content: Settings: mappings, lists, and leaves of any type.
        name: The name of the setting that has this content.

    >>> redacted({"clientSecret": "abc", "headers": [["X-Api-Key", "abc"], "Cookie: abc"], "model": "qwen"})
    {'clientSecret': '<removed>', 'headers': [['X-Api-Key', '<removed>'], 'Cookie: <removed>'], 'model': 'qwen'}
    """
    if isinstance(content, Mapping):
        header = next(
            (content[key] for key in ("name", "key", "header") if isinstance(content.get(key), str)), ""
        )
        names = {key: header if header and key == "value" else str(key) for key in content}
        return {key: redacted(value, _inherited(name, names[key])) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [
            [item[0], redacted(item[1], item[0])] if _is_pair(item) else redacted(item, name)
            for item in content
        ]
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
    from .foreign import printable  # imports pydantic

    lines = str(redacted(text)).split("\n")
    return "\n".join(printable(line) for line in lines)


def without_secrets(text: str, *known: str) -> str:
    """Remove keys (by format), values of secret environment variables, and the values `known` from a text.

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
def _of_environment(variables: frozenset[tuple[str, str]]) -> set[str]:
    """Return the values of secret environment variables, and each line of these values.

    PWD is not secret: it is the shell's working directory.
    """
    named = [(name, value) for name, value in variables if name != "PWD"]
    secret = [value for name, value in named if _named_secret(name, value) or name.upper().endswith("TOKEN")]
    lines = [line for value in secret for line in value.split("\n")]  # a text may be printed line by line
    return {*secret, *lines}


def _named_secret(name: str, value: object) -> bool:
    """Check whether the name of a setting says that its value is secret."""
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
    """Return the last part of a setting's name in snake case.

    For example, this is `api_key` for `server.apiKey` and `X.API-Key`.
    """
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


def secret_pairs(text: str) -> list[str]:
    """Return the name of each `name=value` or `name: value` in a text whose value is a secret."""
    pairs = [(match["name"].lstrip("+~"), match[match.lastgroup or "bare"]) for match in _PAIR.finditer(text)]
    return [name for name, value in pairs if is_secret(name, value)]
