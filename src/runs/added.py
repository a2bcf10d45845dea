"""Compatibility with runs of earlier versions: settings that these runs lack, and classes that have moved."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

ADDED: dict[str, tuple[Any, ...]] = {
    "policy.schedule_options": (None,),
    "rollout.verifier_reads": ("answer", "response"),
    "rollout.engine.check_weights": (False, True),
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
    "data.*.columns.question": ("question",),
    "data.*.columns.answer": ("answer",),
    "data.*.columns.rephrasings": ("rephrasings",),
    "data.*.columns.id": ("id",),
    "data.*.columns.kinds": ("kinds",),
    "data.*.dataset": (None,),
    "data.*.config": (None,),
    "data.*.split": (None,),
    "data.*.worked": (False,),
    "data.*.within": ({},),
    "data.*.delimiter": (None,),
    "*template.system": (None,),
    "*template.instruction": ("",),
    "*template.prefill": ("",),
    "*template.options": (None, {}),
    "*template.date": ("2024-07-26", None),
}
"""Pattern of a setting's dotted name → values with which a run from before the setting existed can resume.

Add each new setting to this table; otherwise a run of an earlier version can't be resumed."""


def is_added(name: str, then: Mapping[str, Any], now: object) -> bool:
    """Return whether a setting is newer than a run, and its present value allows the run to resume.

    Args:
        name: Dotted name of the setting.
        then: Dotted name → value of all settings of the run.
        now: Present value of the setting.

    >>> is_added("template.date", {"template.name": "chat"}, "2024-07-26")
    True
    >>> is_added("template.date", {"template.date": "2025-01-01"}, "2024-07-26")
    False
    """
    if name in then:
        return False
    # `columns` came with the other settings of a source
    part, dot, _ = name.replace(".columns.", ".").rpartition(".")
    # every run has settings at the top level
    new_part = not any(other.startswith(part + dot) for other in then)
    if new_part:
        return False
    return any(now in values for pattern, values in ADDED.items() if fnmatchcase(name, pattern))


MOVED = {
    "tagrpo.datamodules.questions.QuestionDataModule": "tagrpo.datamodules.lightning.questions.QuestionDataModule",
    "tagrpo.datamodules.sources.jsonl.JsonLinesSource": "tagrpo.datamodules.sources.table.TableSource",
    "tagrpo.modules.policy_module.PolicyOptions": "tagrpo.modules.lightning.policy_module.PolicyOptions",
    "tagrpo.modules.strategy.FullyShardedStrategy": "tagrpo.modules.lightning.strategy.FullyShardedStrategy",
    "tagrpo.rollouts.VLLMServerEngine": "tagrpo.rollouts.servers.vllm_server.VLLMServerEngine",
}
"""Former name of a class or function in settings → its present name.

Add each class of this package that moves to this table; otherwise a run of an earlier version can't be
resumed."""


def with_moved(content: Any) -> Any:
    """Return settings with the present names of classes that have moved, at any depth.

    >>> with_moved({"policy": {"_target_": "tagrpo.modules.policy_module.PolicyOptions", "anchor": "own"}})
    {'policy': {'_target_': 'tagrpo.modules.lightning.policy_module.PolicyOptions', 'anchor': 'own'}}
    """
    if isinstance(content, Mapping):
        moved = {key: with_moved(value) for key, value in content.items()}
        target = moved.get("_target_")
        if isinstance(target, str):
            moved["_target_"] = MOVED.get(target, target)
        return moved
    return [with_moved(value) for value in content] if isinstance(content, list) else content
