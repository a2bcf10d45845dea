"""Digests of the content that runs and evaluations depend on, since a path does not identify its content."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from ..digests import json_digest, tokenizer_digest
from ..rewards.checked_function import module_of, named
from ..runs.sources import sources_of

if TYPE_CHECKING:
    from ..datamodules.lightning.questions import QuestionDataModule
    from ..modules.lightning.policy_module import PolicyModule


def identity_of(
    cfg: DictConfig, policy: PolicyModule, data: QuestionDataModule, checkpoint: Path | None
) -> dict[str, str]:
    """Return digests of everything that the counts of `tagrpo-eval` depend on.

    Evaluations with equal digests share counts.
    """
    reads_rows = is_function(cfg.reward)  # whose functions read the columns of `QuestionGroup.metadata`, too
    splits = {}
    for name, loader in data.evaluation_loaders().items():
        splits[name] = [tuple(group[: 5 if reads_rows else 4]) for group in loader.groups]
    parts = (cfg.reward, cfg.data.evaluation_template or cfg.template, cfg.rollout.evaluation_sampling)
    reward, template, sampling = (OmegaConf.to_container(part, resolve=True) for part in parts)
    model = policy.policy.model
    found = [model.config.to_dict(), model.generation_config.to_dict() if model.generation_config else {}]
    configuration = [
        {k: x for k, x in part.items() if not k.startswith(("_", "transformers_"))} for part in found
    ]
    engine = [str(cfg.rollout.engine.get(name, "")) for name in ("_target_", "dtype")]
    return {
        "weights": str(policy.loaded),
        "model": json_digest(configuration),
        "checkpoint": json_digest(_sums_of(checkpoint)) if checkpoint else "",
        "tokenizer": tokenizer_digest(data.tokenizer),
        "data": json_digest(splits),
        "reward": json_digest([_without_workers(reward), _code_of(reward)]),
        "sampling": json_digest([sampling, engine, cfg.seed]),
        "protocol": json_digest([template, _code_of(template), cfg.data.evaluation_samples]),
    }


def _without_workers(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {name: _without_workers(value) for name, value in content.items() if name != "workers"}
    return [_without_workers(value) for value in content] if isinstance(content, list) else content


def _sums_of(checkpoint: Path) -> Any:
    """Return the checksums in a checkpoint, with which its content is compared before loading."""
    if checkpoint.is_dir():
        from ..runs.checkpoints import read_seals

        return read_seals(checkpoint)
    with zipfile.ZipFile(checkpoint) as archive:
        return [
            (record.filename.partition("/")[2], record.file_size, record.CRC) for record in archive.infolist()
        ]


def _code_of(settings: Any) -> list[Any]:
    """Return the source code of the classes and reward functions that settings name.

    The code includes all Python files in the folders of their modules, and all imported modules. Warns of
    modules that load other modules at run time, since changes in these are not noticed.
    """
    from hydra.utils import get_object

    modules = {get_object(name).__module__ for name in targets(settings)}
    for name in functions(settings):
        function = named(name)
        modules |= {module_of(name), getattr(function, "__module__", None) or module_of(name)}
    places = [getattr(import_module(module), "__file__", None) for module in modules]
    folders = {Path(place).parent for place in places if place}
    files = [
        file.read_text(errors="replace") for folder in sorted(folders) for file in sorted(folder.glob("*.py"))
    ]
    imported = sources_of(sorted(modules))
    if imported.open:
        warnings.warn(
            f"Expected the code of {', '.join(targets(settings))} to name the modules that it imports, but "
            f"{', '.join(imported.open)} loads some at run time. If you change those, delete the counts of "
            "earlier evaluations: otherwise they are used for the new code.",
            stacklevel=2,
        )
    return [files, imported.digests]


def functions(settings: Any) -> Iterator[str]:
    """Yield the names of reward functions in the settings of a `FunctionReward`.

    >>> list(functions({"_target_": "tagrpo.rewards.FunctionReward", "target": ["a.b", {"_target_": "a.C"}]}))
    ['a.b']
    """
    if is_function(settings):
        target = settings["target"]
        for name in target if isinstance(target, list) else [target]:
            if isinstance(name, str):
                yield name


def is_function(reward: Any) -> bool:
    """Return whether settings of a reward are those of a `FunctionReward`."""
    return isinstance(reward, Mapping) and str(reward.get("_target_")).endswith(".FunctionReward")


def targets(settings: Any) -> Iterator[str]:
    """Yield all `_target_`s in settings, at any depth."""
    if isinstance(settings, Mapping):
        if "_target_" in settings:
            yield settings["_target_"]
        settings = list(settings.values())
    for part in settings if isinstance(settings, list) else ():
        yield from targets(part)
