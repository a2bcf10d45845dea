"""Errors of chat APIs in any wrapping: with an HTTP status, or in a body of status 200."""

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..foreign import ForeignDataError, printable

_UNREADABLE = 502
"""Status for a body that is neither a chat completion nor an error with a status; the call is retried."""
_LONGEST = 300
_STATUS_OF_WORD = {
    "rate_limit": 429, "ratelimit": 429, "quota": 429, "exhausted": 429, "too_many": 429, "throttl": 429,
    "overloaded": 503, "unavailable": 503,
    "authentication": 401, "unauthorized": 401, "unauthenticated": 401, "api_key": 401, "billing": 402,
    "permission": 403, "forbidden": 403, "not_found": 404, "invalid_request": 400, "invalid_argument": 400,
    "unsupported": 400, "context_length": 400, "bad_request": 400, "validation": 400,
}  # fmt: skip
"""Word in an error's code or type → HTTP status that APIs send with the word; the first word found counts.

If the code and the type have none of these words, the message is searched, but only for words of 429 and 503,
which only cause a retry."""

_PASSING = (429, 503)
_MESSAGES = (
    "message", "msg", "detail", "error", "error_message", "error_msg", "status_msg", "reason", "Message", "faultstring",
)  # fmt: skip
_NUMBERS = ("code", "status", "status_code", "statusCode", "http_status", "http_code", "error_code")
_CODES = ("code", "Code", "type", "__type", "status", "error_code", "errorcode")


@dataclass(frozen=True, kw_only=True)
class ApiError:
    """Error message of a server for a call without an answer. All texts are printable."""

    message: str
    """Message of the server; the beginning of the body if there is no message."""
    status: int | None = None
    """HTTP status in the body, 400 to 599; None if the body has no status."""
    code: str = ""
    """Codes and types of the server: `insufficient_quota invalid_request_error`."""
    parameter: str = ""
    """Argument of the request that the server refuses; empty if the server names none."""


class NoCompletionError(ForeignDataError):
    """Error for a body without a chat completion. Nothing was paid for, and the call may be sent again.

    Args:
        error: Error in the body.
    """

    def __init__(self, error: ApiError) -> None:
        super().__init__(
            f"Expected the server's reply to be a chat completion, but got: {error.message}. "
            "The same command asks again. If this recurs, check server.base_url."
        )
        self.error = error
        self.status = error.status or _UNREADABLE


def read_error(body: str) -> ApiError:
    """Read an error from a body: an object, a list, a text, or any nesting of them; never raises.

    >>> read_error('{"error": {"message": "slow down", "code": 429}}')
    ApiError(message='slow down', status=429, code='', parameter='')
    >>> read_error('[{"error": {"errors": [{"detail": "no such model", "type": "not_found_error"}]}}]').status
    404
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = body
    if isinstance(content, str):
        return ApiError(message=_shown(content) or "an empty body")
    message = _first(content, _MESSAGES, _is_text)
    number = _first(content, _NUMBERS, _is_status)
    codes = [_first(content, (name,), _is_text) for name in _CODES]
    code = " ".join(found for found in codes if found)
    place = _first(content, ("param", "parameter"), _is_text) or _first(content, ("loc",), _is_place)
    return ApiError(
        message=_shown(message or body) or "an empty body",
        status=int(number) if number else _status_of(code) or _status_of(message or "", passing=True),
        code=_shown(code),
        parameter=_shown(place[-1] if isinstance(place, list) else place or ""),
    )


def is_error(value: object) -> bool:
    """Check whether a body's field `error` has content; servers also send `null`, `""` and empty objects.

    >>> is_error({"message": None, "code": 0}), is_error({"message": "slow down"}), is_error("slow down")
    (False, True, True)
    """
    if isinstance(value, Mapping):
        return any(value.values())
    return bool(value)


def _first(content: Any, names: tuple[str, ...], accept: Callable[[Any], bool]) -> Any:
    """Return the least nested accepted value under one of the names; None if no value is accepted."""
    waiting = deque([content])
    while waiting:
        value = waiting.popleft()
        if isinstance(value, Mapping):
            for name in names:
                if accept(value.get(name)):
                    return value[name]
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return None


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_status(value: object) -> bool:
    """Check whether a value is an error status, 400 to 599, as a number or in digits."""
    if isinstance(value, str):
        return len(value) == 3 and value.isascii() and value.isdecimal() and 400 <= int(value) <= 599
    return type(value) is int and 400 <= value <= 599


def _is_place(value: object) -> bool:
    """Check whether a value is an error location as in pydantic and FastAPI: `["body", "max_tokens"]`."""
    return isinstance(value, list) and bool(value) and _is_text(value[-1])


def _status_of(text: str, *, passing: bool = False) -> int | None:
    """Return the status for the words of a text; with `passing`, only that of a temporary error."""
    spelled = text.casefold().replace(" ", "_").replace("-", "_")
    found = next((status for word, status in _STATUS_OF_WORD.items() if word in spelled), None)
    return None if passing and found not in _PASSING else found


def _shown(text: str) -> str:
    return printable(text.strip()[:_LONGEST])
