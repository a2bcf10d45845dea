"""Reader of data from outside: replies of servers and APIs, third-party programs, files of other runs.

Describe the expected data as a `Message`, and let `read` or `read_json` check number, type, range and
finiteness. Data that breaks its contract raises `ForeignDataError`, and no other error.
"""

import json
import math
from functools import cache
from typing import Annotated, Any, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    TypeAdapter,
    ValidationError,
)

T = TypeVar("T")
_SHOWN = 120
"""Number of characters of a wrong value that an error shows."""


def _without_surrogates(text: str) -> str:
    text.encode()  # UnicodeEncodeError is a ValueError
    return text


Count = Annotated[int, Field(ge=0)]
"""A whole number of at least 0; `true` and `1.0` are refused."""
Finite = Annotated[float, Field(allow_inf_nan=False)]
"""A finite number; whole numbers are accepted, `true` is refused."""
Text = Annotated[str, AfterValidator(_without_surrogates)]
"""A text that UTF-8 can encode: JSON can carry lone surrogates, files and terminals can't."""


class ForeignDataError(ValueError):
    """Error for data from outside that breaks its contract.

    The message names the source, the place, the expected value, the value found and a remedy.
    """


class _FirstError:
    """Annotation that stops the check of a list at its first wrong item.

    By default pydantic collects an error for each item: a list of ten million wrong items would take minutes,
    and gigabytes of memory.
    """

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: GetCoreSchemaHandler) -> Any:
        schema = handler(source)
        _stop_early(schema)
        return schema


def _stop_early(schema: object) -> None:
    """Set `fail_fast` in every schema of a list, a tuple or a set within `schema`."""
    if isinstance(schema, dict):
        if schema.get("type") in ("list", "tuple", "set", "frozenset"):
            schema["fail_fast"] = True
        for part in schema.values():
            _stop_early(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            _stop_early(part)


class Message(BaseModel):
    """Base class for data from a foreign source: types are not converted, unknown fields are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler, /) -> Any:
        """Stop the check of each list at its first wrong item."""
        return _FirstError.__get_pydantic_core_schema__(source, handler)


def read(kind: type[T], value: object, *, source: str, remedy: str) -> T:
    """Check that a Python object, such as parsed JSON, matches `kind`, and return it as a `kind`.

    Args:
        kind: A `Message`, or any type that pydantic checks, such as `list[Count]`.
        value: The foreign object.
        source: Origin of the data, as errors name it: "the vLLM server http://10.0.0.7:8000".
        remedy: A sentence that says what to do, with the setting to change: "Check rollout.engine.url."

    Raises:
        ForeignDataError: if `value` does not match `kind`.

    >>> read(list[Count], [1, 2], source="x", remedy="Delete it.")
    [1, 2]
    >>> read(list[Count], [1, -2], source="x", remedy="Delete it.")
    Traceback (most recent call last):
    tagrpo.foreign.ForeignDataError: Expected x at [1] to be greater than or equal to 0, but got -2...
    """
    adapter: TypeAdapter[T] = _adapter(cast("Any", kind))
    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError as error:
        raise ForeignDataError(_explained(error, source, remedy)) from None
    except RecursionError:
        raise ForeignDataError(
            f"Expected {source} to be shallow, but it is nested too deeply. {remedy}"
        ) from None


def read_json(kind: type[T], text: str | bytes, *, source: str, remedy: str) -> T:
    """Parse JSON, and check the value as `read` does.

    Raises:
        ForeignDataError: if the text is not JSON (NaN, Infinity and 1e400 are refused), or does not match
            `kind`.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    # bad UTF-8 and integers of thousands of digits are ValueErrors too
    except (ValueError, RecursionError) as error:
        found = _shown(text)
        raise ForeignDataError(
            f"Expected {source} to be JSON, but got {found} ({printable(str(error))}). {remedy}"
        ) from None
    return read(kind, value, source=source, remedy=remedy)


def printable(text: str) -> str:
    r"""Escape characters of a text that a terminal would obey or could not show, line ends included.

    Every text from a model, a server or a file is escaped in this way before it is printed or logged.

    >>> printable("slow\x1b[2J down\u202e\n")
    'slow\\x1b[2J down\\u202e\\n'
    """
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text
    )


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the validator of a type, which takes longer to make than to use."""
    return TypeAdapter(Annotated[kind, _FirstError])


def _finite(text: str) -> float:
    """Parse a number; a number beyond the range of floats, such as 1e400, would become infinity."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:_SHOWN]} is too large")
    return number


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _explained(error: ValidationError, source: str, remedy: str) -> str:
    """Return the error message for the first error of a validation."""
    first = error.errors(include_url=False, include_context=False)[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    where = f" at {printable(place)}" if place else ""
    if first["type"] == "missing":
        return f"Expected {source} to have {printable(place)}, but it is missing. {remedy}"
    wanted = first["msg"].removeprefix("Input should be ")
    if wanted.startswith("Value error"):
        wanted = "text that UTF-8 can encode"
    return f"Expected {source}{where} to be {wanted}, but got {_shown(first['input'])}. {remedy}"


def _shown(value: object) -> str:
    """Return the beginning of a value's `repr`, on one line, in characters that all terminals show."""
    try:
        text = repr(value)
    except Exception:  # integers of thousands of digits, objects nested too deeply, foreign __repr__
        text = f"<{type(value).__name__}>"
    return printable(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
