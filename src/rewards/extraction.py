"""From a response to its final answer, and from an answer to a canonical spelling.

Responses are untrusted: they may be megabytes long, hold control characters or never close a brace. Nothing
here raises on them, backtracks or converts digits to numbers: the cost is proportional to the length.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

Reference = str | Sequence[str]
"""One reference answer, or several of which any is correct."""

_NUMBER = re.compile(r"([+-]?)(\d{1,3}(?:,\d{3})+|\d*)(?:\.(\d*))?")


def references_of(reference: Reference) -> tuple[str, ...]:
    """The reference answers as a tuple.

    Raises:
        ValueError: without any reference answer; nothing could ever be correct.
    """
    references = (reference,) if isinstance(reference, str) else tuple(reference)
    if not references:
        raise ValueError("Expected at least one reference answer, got an empty sequence.")
    return references


def canonical_number(text: str) -> str | None:
    r"""The canonical spelling of a plain decimal number, None for anything else.

    Surrounding spaces, `$` and `%` signs, thousands separators, a trailing full stop, a plus sign, leading
    zeros and trailing zeros of the fraction are dropped. Works on digits, so that no size is too large.

    >>> [canonical_number(text) for text in (" $1,234.50. ", "007", "-0.0", r"15\%")]
    ['1234.5', '7', '0', '15']
    >>> canonical_number("4 2"), canonical_number("1,23"), canonical_number("1/2"), canonical_number("")
    (None, None, None, None)
    """
    text = text.strip().removesuffix(".").replace("\\$", "$").replace("\\%", "%").strip()
    match = _NUMBER.fullmatch(text.removeprefix("$").removesuffix("$").removesuffix("%").strip())
    if match is None or not text.isascii():
        return None
    sign, integer, fraction = match.group(1), match.group(2).replace(",", ""), match.group(3) or ""
    if not integer and not fraction:
        return None
    integer, fraction = integer.lstrip("0") or "0", fraction.rstrip("0")
    magnitude = f"{integer}.{fraction}" if fraction else integer
    return f"-{magnitude}" if sign == "-" and magnitude != "0" else magnitude


def after_marker(response: str, marker: str) -> str | None:
    """The rest of the line after the last `marker`, stripped; None without a marker or with nothing after it.

    >>> after_marker("12 + 15 = 27 #### 27 ", "####")
    '27'
    """
    _, found, tail = response.rpartition(marker)
    lines = tail.strip().splitlines()
    return lines[0].strip() if found and lines else None
