"""Settings that runs of earlier versions do not have, and the values with which such a run may go on."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

ADDED: dict[str, tuple[Any, ...]] = {
    "policy.schedule_options": (None,),
    "rollout.verifier_reads": ("answer", "response"),
    "rollout.replay.form": ("#### {answer}",),
    "data.load_seconds": (600,),
    "data.*.load_seconds": (600,),
    "r*.load_seconds": (600,),  # of `reward`, and of its copy `rollout.verifier`
    "r*.cpu_seconds": (5.0,),
    "data.variables": ([],),
    "data.*.variables": ([],),
    "r*.variables": ([],),
    "r*.percent": ("number",),
    "r*.bare_base": (True,),
    "r*.bare_unit": (True,),
    "r*.ordered_as_list": (True,),
    "r*.decimal_tolerance": (1e-5,),
    "*template.system": (None,),
    "*template.instruction": ("",),
    "*template.prefill": ("",),
    "*template.options": (None, {}),
    "*template.date": ("2024-07-26", None),
}
"""Pattern of a setting's dotted name → its values that a run made before the setting existed may go on with.

A setting that is new here belongs in this table, or a run of an earlier version cannot be resumed.
"""


def is_added(name: str, then: Mapping[str, Any], now: object) -> bool:
    """Check if a setting did not exist when a run was made, and has a value now with which the run may go on.

    Args:
        name: Dotted name of the setting.
        then: Dotted name → value of all settings of the run.
        now: Its value now.

    >>> is_added("template.date", {"template.name": "chat"}, "2024-07-26")
    True
    >>> is_added("template.date", {"template.date": "2025-01-01"}, "2024-07-26")
    False
    """
    if name in then:
        return False
    part, dot, _ = name.rpartition(".")
    new_part = not any(other.startswith(part + dot) for other in then)  # every run has settings at the top level
    if new_part:
        return False
    return any(now in values for pattern, values in ADDED.items() if fnmatchcase(name, pattern))
