"""Digests of the content that runs and evaluations depend on, since a path does not identify its content."""

from __future__ import annotations

import inspect
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from ..digests import json_digest, tokenizer_digest
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
    splits = {name: loader.groups for name, loader in data.evaluation_loaders().items()}
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
        "data": json_digest(
            {name: [tuple(group[:4]) for group in groups] for name, groups in splits.items()}
        ),
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
    """Return the code of the classes that settings name: all files in their folders, and all imports.

    Warn of modules that load other modules at run time: changes in those are not noticed.
    """
    from hydra.utils import get_object

    kinds = [get_object(name) for name in targets(settings)]
    folders = {Path(inspect.getfile(kind)).parent for kind in kinds}
    files = [
        file.read_text(errors="replace") for folder in sorted(folders) for file in sorted(folder.glob("*.py"))
    ]
    imported = sources_of(sorted({kind.__module__ for kind in kinds}))
    if imported.open:
        warnings.warn(
            f"Expected the code of {', '.join(targets(settings))} to name the modules that it imports, but "
            f"{', '.join(imported.open)} loads some at run time. If you change those, delete the counts of "
            "earlier evaluations: otherwise they are used for the new code.",
            stacklevel=2,
        )
    return [files, imported.digests]


def targets(settings: Any) -> Iterator[str]:
    """Yield all `_target_`s in settings, at any depth."""
    if isinstance(settings, Mapping):
        if "_target_" in settings:
            yield settings["_target_"]
        settings = list(settings.values())
    for part in settings if isinstance(settings, list) else ():
        yield from targets(part)
