"""Digests of the content that runs and evaluations depend on, since a path does not identify its content."""

from __future__ import annotations

import hashlib
import inspect
import json
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from .sources import sources_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ..datamodules.questions import QuestionDataModule
    from ..modules.policy_module import PolicyModule


def digest(content: Any) -> str:
    """Return a digest of content that JSON can represent, in 16 hex digits."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


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
    configuration = [{k: x for k, x in part.items() if not k.startswith(("_", "transformers_"))} for part in found]
    engine = [str(cfg.rollout.engine.get(name, "")) for name in ("_target_", "dtype")]
    return {
        "weights": str(policy.loaded),
        "model": digest(configuration),
        "checkpoint": digest(_sums_of(checkpoint)) if checkpoint else "",
        "tokenizer": tokenizer_digest(data.tokenizer),
        "data": digest({name: [tuple(group[:4]) for group in groups] for name, groups in splits.items()}),
        "reward": digest([_without_workers(reward), _code_of(reward)]),
        "sampling": digest([sampling, engine, cfg.seed]),
        "protocol": digest([template, _code_of(template), cfg.data.evaluation_samples]),
    }


def _without_workers(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {name: _without_workers(value) for name, value in content.items() if name != "workers"}
    return [_without_workers(value) for value in content] if isinstance(content, list) else content


def _sums_of(checkpoint: Path) -> Any:
    """Return the checksums in a checkpoint, with which its content is compared before loading."""
    if checkpoint.is_dir():
        from .checkpoints import read_seals

        return read_seals(checkpoint)
    with zipfile.ZipFile(checkpoint) as archive:
        return [(record.filename.partition("/")[2], record.file_size, record.CRC) for record in archive.infolist()]


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a digest of a tokenizer: its splitting of texts, special tokens and chat template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    how = json.loads(backend.to_str()) if backend is not None else tokenizer.get_vocab()
    how = {name: value for name, value in how.items() if name not in ("truncation", "padding")}  # set by each call
    return digest([how, tokenizer.special_tokens_map, tokenizer.chat_template])


def _code_of(settings: Any) -> list[Any]:
    """Return the code of the classes that settings name: all files in their folders, and all imports.

    Warn of modules that load other modules at run time: changes in those are not noticed.
    """
    from hydra.utils import get_object

    kinds = [get_object(name) for name in targets(settings)]
    folders = {Path(inspect.getfile(kind)).parent for kind in kinds}
    files = [file.read_text(errors="replace") for folder in sorted(folders) for file in sorted(folder.glob("*.py"))]
    imported = sources_of(sorted({kind.__module__ for kind in kinds}))
    if imported.open:
        warnings.warn(
            f"Expected the code of {', '.join(targets(settings))} to name the modules that it imports, but "
            f"{', '.join(imported.open)} loads some at run time. If you change those, delete the counts of earlier "
            "evaluations: otherwise they are used for the new code.",
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


def bit_sums(module: nn.Module) -> list[tuple[str, int]]:
    """Return the name of each parameter of this rank and the sum of its bits as integers.

    A hash would take seconds.
    """
    parts = ((name, own_part(parameter).contiguous()) for name, parameter in module.named_parameters())
    integers = ((name, part.view(getattr(torch, f"int{8 * part.element_size()}"))) for name, part in parts)
    return [(name, int(part.sum(dtype=torch.int64))) for name, part in integers]


def own_part(parameter: Tensor) -> Tensor:
    """Return this rank's part of a parameter."""
    tensor = parameter.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
