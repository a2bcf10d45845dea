"""Where the formulas and figures of a problem stand in its text."""

from __future__ import annotations

import re
from functools import lru_cache

_BLOCK = (  # formulas of more than 4,000 characters are none; without bounds, "\[" ten thousand times takes for ever
    r"(?P<figure>\[asy\].{0,8000}?\[/asy\])"
    r"|\$\$(?P<display>.{0,4000}?)\$\$|\\\[(?P<bracket>.{0,4000}?)\\\]|\\\((?P<paren>.{0,4000}?)\\\)"
    r"|\\begin\{(?P<env>align|equation|eqnarray|gather|multline)(?P<star>\*?)\}(?P<body>.{0,4000}?)\\end\{(?P=env)(?P=star)\}"
)
_INLINE = r"(?<!\\)\$(?P<inline>(?:\\.|[^$\\])*)\$"
_MATH = re.compile(f"{_BLOCK}|{_INLINE}", re.DOTALL)
_MATH_BESIDE_MONEY = re.compile(_BLOCK, re.DOTALL)
_PROSE = re.compile(
    r"(?:\A|\s)(?:and|the|for|per|each|an|of|to|is|in|he|she|at|on|or|if|it|was|had|has|his|her|how|than|from|with|they|"
    r"what|more|bill|cost|less|fee|plus|[a-z]{5,}),?(?=\s|\Z)|[.?]\s+[A-Z][a-z]"
)
"""Words that no formula holds outside of `text`: not `xy` or `abc`, which are products."""


@lru_cache(maxsize=64)
def math_spans(text: str) -> tuple[re.Match[str], ...]:
    r"""Formulas and figures as they stand in the text.

    Where a pair of dollars encloses prose, or one has no partner, dollars are taken for money.

    >>> math_spans("She earns $12 an hour and pays $5.")
    ()
    """
    inline = re.sub(r"\\(?:text|mbox|mathrm)\s*\{[^{}]*\}", "", _MATH_BESIDE_MONEY.sub("", text))
    odd = len(re.findall(r"(?<!\\)\$", inline)) % 2 == 1
    money = odd or any(_PROSE.search(match["inline"]) for match in re.finditer(_INLINE, inline, re.DOTALL))
    return tuple((_MATH_BESIDE_MONEY if money else _MATH).finditer(text))


def prose(text: str) -> str:
    """The text without its formulas and figures."""
    ends = [0, *(place for match in math_spans(text) for place in match.span()), len(text)]
    return " ".join(text[start:end] for start, end in zip(ends[::2], ends[1::2], strict=True))
