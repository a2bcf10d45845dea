"""Which questions of a source a run learns from, by numbers in their metadata: levels, success rates."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ...types import QuestionGroup

Ranges = Mapping[str, Sequence[float]]
"""Field → its smallest and its largest value, both included."""


def check_ranges(within: Ranges) -> None:
    """Raise a ValueError where bounds are no pair of numbers in order."""
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
    excluded: dict[str, list[str]] = defaultdict(list)
    kept = []
    for group in groups:
        outside = [field for field, bounds in within.items() if not _is_within(group, field, bounds, origin)]
        if outside:
            excluded[f"outside_{outside[0]}"].append(group.id)
        else:
            kept.append(group)
    return kept, dict(excluded)


def _is_within(group: QuestionGroup, field: str, bounds: Sequence[float], origin: object) -> bool:
    value: Any = group.metadata.get(field)
    if value is None:
        raise ValueError(
            f"{origin}: expected `{field}` of every question, because the source's `within` asks for {list(bounds)}, "
            f"but {group.id} has {', '.join(group.metadata) or 'no metadata'}. Take a file that has it, or drop it."
        )
    if isinstance(value, str):
        found = re.search(r"-?\d+(\.\d+)?", value)
        value = float(found[0]) if found else math.nan
    return bool(bounds[0] <= value <= bounds[1])
