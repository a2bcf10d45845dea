"""Settings that runs of earlier versions lack, and the values with which such a run can be resumed."""

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
"""Pattern of a setting's dotted name → values that let a run from before the setting existed resume.

Add each new setting to this table; otherwise a run of an earlier version can't be resumed.
"""


def is_added(name: str, then: Mapping[str, Any], now: object) -> bool:
    """Check that a setting did not exist when a run was made, and that its value now allows a resume.

    Args:
        name: Dotted name of the setting.
        then: Dotted name → value of all settings of the run.
        now: Value of the setting now.

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
