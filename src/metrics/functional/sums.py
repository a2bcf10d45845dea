"""Sums that do not depend on the order of their terms, so that batches and ranks may share them out as they like."""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum


def exact_parts(values: Iterable[float]) -> list[float]:
    """A few floats whose exact sum is that of `values`; `math.fsum` of the parts of all ranks is the sum of everything.

    A plain sum of partial sums differs in its last bits with the way the terms were shared out; this one never does.

    Args:
        values: Finite floats.

    Returns:
        The rounded sum, what its rounding left, and so on, until nothing is left; empty for a sum of zero.

    >>> exact_parts([1e16, 1.0, 1.0, 1.0])
    [1.0000000000000004e+16, -1.0]
    """
    terms = list(values)
    parts: list[float] = []
    while rest := fsum([*terms, *(-part for part in parts)]):
        parts.append(rest)
    return parts
