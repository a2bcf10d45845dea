"""Canonical spelling of an answer, from its text.

Answers are untrusted. No function here raises on answers, backtracks or converts digits to a number. The cost
is proportional to the length.
"""

import re
from collections.abc import Sequence

Reference = str | Sequence[str]
"""One reference answer, or several, any of which is correct."""

_NUMBER = re.compile(r"([+-]?)(\d{1,3}(?:,\d{3})+|\d*)(?:\.(\d*))?")
_CONTAINER = re.compile(r"\s*[\[{(]+\s*['\"]")
_SPACED_COMMA = re.compile(r",(?:\\[,;: ]|[\s~])+\d")
_TEXT_COMMAND = re.compile(
    r"\\(?:text(?:bf|it|rm|normal)?|mbox|hbox|mathrm|mathbf|boxed|fbox)(?![A-Za-z])\s*\{([^{}]*)\}"
)
_REWRITES = {
    re.compile(r"\\(?:left|right)(?![A-Za-z])"): "",
    re.compile(r"\\!|(?<=\d)\\,(?=\d{3}(?!\d))"): "",
    re.compile(r"\\[,;: ]|~|\s"): " ",
    re.compile(r"\{,\}"): ",",
    re.compile(r"\\[dt]frac(?![A-Za-z])"): r"\\frac",
    re.compile(r"\\frac ?(\d) ?(\d)"): r"\\frac{\1}{\2}",
    re.compile(r"\\?\$"): "",
    re.compile(r" +"): " ",
    re.compile(r"(?<![A-Za-z0-9]) | (?![A-Za-z0-9])"): "",
    re.compile(r"\A\(([A-Za-z])\)\Z"): r"\1",
}


def references_of(reference: Reference) -> tuple[str, ...]:
    """Return the reference answers as a tuple.

    Raises:
        ValueError: if there is no reference answer, so that no response could be correct.
    """
    references = (reference,) if isinstance(reference, str) else tuple(reference)
    if not references:
        raise ValueError("Expected at least one reference answer, but got an empty sequence.")
    return references


def is_container(text: str) -> bool:
    """Check whether a text begins like a list or object of Python or JSON that contains texts.

    >>> is_container("['4', '5']"), is_container('{"value": 4}'), is_container("[4, 5]")
    (True, True, False)
    """
    return _CONTAINER.match(text) is not None


def canonical_number(text: str) -> str | None:
    r"""Return the canonical spelling of a plain decimal number; None for any other text.

    Surrounding spaces, `$` and `%` signs, thousands separators, a trailing full stop, a plus sign, leading
    zeros and trailing zeros of the fraction are dropped. The function works on digits, so that no number is
    too large.

    >>> [canonical_number(text) for text in (" $1,234.50. ", "-0.0", r"15\%", "4 2", "1,23", "1/2")]
    ['1234.5', '0', '15', None, None, None]
    """
    text = text.strip().removesuffix(".").replace("\\$", "$").replace("\\%", "%").strip()
    match = _NUMBER.fullmatch(text.removeprefix("$").removesuffix("$").removesuffix("%").strip())
    if match is None or not text.isascii():
        return None
    sign = match.group(1)
    integer = match.group(2).replace(",", "")
    fraction = match.group(3) or ""
    if not integer and not fraction:
        return None
    integer = integer.lstrip("0") or "0"
    fraction = fraction.rstrip("0")
    magnitude = f"{integer}.{fraction}" if fraction else integer
    return f"-{magnitude}" if sign == "-" and magnitude != "0" else magnitude


def normalize_answer(answer: str) -> str:
    r"""Return a spelling that most equal answers share, and that no two different answers share.

    Drops `\left`, `\right`, dollars, spacing commands, a final full stop or comma, and spaces that separate
    nothing. Unwraps `\text{…}`, `\mbox{…}` and the like. Writes `\dfrac`, `\tfrac` and `\frac12` as
    `\frac{1}{2}`, `(B)` as `B`, and plain numbers as `canonical_number` does. There is no algebra: `1/2` and
    `\frac{1}{2}` stay two spellings.

    >>> [normalize_answer(text) for text in (r"\$1,\!657.00", r"\left( 3, \tfrac12 \right)", r"\text{(E)},")]
    ['1657', '(3,\\frac{1}{2})', 'E']
    """
    answer = answer.replace("\N{MINUS SIGN}", "-")
    is_list = _SPACED_COMMA.search(answer) is not None
    for _ in range(2):  # the second pass unwraps a command inside another, as in \boxed{\text{…}}
        answer = _TEXT_COMMAND.sub(r" \1 ", answer)
    for pattern, replacement in _REWRITES.items():
        answer = pattern.sub(replacement, answer).lstrip().rstrip(" .,")
    number = None if is_list else canonical_number(answer)  # `100, 200` are two numbers
    return number or answer
