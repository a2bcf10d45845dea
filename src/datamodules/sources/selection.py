"""Selects questions of a source by numbers in their metadata, such as levels and success rates."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from ...types import QuestionGroup

Ranges = Mapping[str, Sequence[float]]
"""Field → its smallest and its largest value, both included."""


def check_ranges(within: Ranges) -> None:
    """Raise a ValueError unless all bounds are [smallest, largest]."""
    for field, bounds in within.items():
        if len(bounds) != 2 or not bounds[0] <= bounds[1]:
            raise ValueError(
                f"Expected the source's `within.{field}` to be [smallest, largest], such as [3, 5], but got {bounds}."
            )


def select(
    groups: Sequence[QuestionGroup], within: Ranges, origin: object
) -> tuple[list[QuestionGroup], dict[str, list[str]]]:
    """The questions whose fields all lie `within` their ranges; and `outside_<field>` → ids of the others.

    A field is a number, or a text with one in it, such as `Level 3`. A text without one (`Level ?`) lies outside.
    """
    kept, excluded = list(groups), {}
    for field, (low, high) in within.items():
        inside = {group.id for group in kept if low <= _number(group, field, origin) <= high}
        if outside := [group.id for group in kept if group.id not in inside]:
            excluded[f"outside_{field}"] = outside
        kept = [group for group in kept if group.id in inside]
    return kept, excluded


def _number(group: QuestionGroup, field: str, origin: object) -> float:
    value = group.metadata.get(field)
    if value is None:
        raise ValueError(
            f"{origin}: expected `{field}` of every question, because the source's `within` asks for it, but "
            f"{group.id} has {', '.join(group.metadata) or 'no metadata'}. Take a file that has it, or drop it."
        )
    found = re.search(r"-?\d+(\.\d+)?", value) if isinstance(value, str) else [value]
    return float(found[0]) if found else math.nan
