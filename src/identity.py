"""What the counts of an evaluation depend on, as digests of contents: a path does not say what lies there."""

from __future__ import annotations

import hashlib
import inspect
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from .files import write_json
from .types import QuestionGroup

SETTLED_SECONDS = 2.0
"""A file that changed less than this before it was read may change again without another time of change."""
WEIGHT_FILES = (".safetensors", ".bin", ".pt", ".json", ".model", ".txt", ".jinja")
"""Of a model folder: weights, configuration, tokenizer."""
DIGITS = 16


class FileDigests:
    """SHA-256 of files, computed once as long as they stay as they are.

    What was computed is kept in `memo` under device, inode, size, and the times of the last change of content and of
    inode, which no copying sets back. A file that has just changed is not kept, as two changes may share a time.
    """

    def __init__(self, memo: Path) -> None:
        self._memo = memo
        self._known: dict[str, str] = json.loads(memo.read_text()) if memo.exists() else {}

    def of(self, paths: Iterable[Path]) -> str:
        """One digest of the names and contents of files."""
        parts = [(path.name, self._of_one(path)) for path in sorted(paths)]
        write_json(self._memo, self._known)
        return digest(parts)

    def _of_one(self, path: Path) -> str:
        key = _state(path)
        if key not in self._known:
            began = time.time()
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if _state(path) != key or began - path.stat().st_ctime < SETTLED_SECONDS:
                return found
            self._known[key] = found
        return self._known[key]


def _state(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_dev}-{stat.st_ino}-{stat.st_size}-{stat.st_mtime_ns}-{stat.st_ctime_ns}"


def digest(content: Any) -> str:
    """16 hex digits of anything that JSON can write."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]


def identity_of(
    cfg: DictConfig, splits: Mapping[str, Iterable[QuestionGroup]], checkpoint: Path | None, memo: Path
) -> dict[str, str]:
    """What is evaluated and how, part by part, each as a digest: equal ones may share their counts.

    Args:
        cfg: Of `tagrpo-eval`.
        splits: Name → questions, in their order.
        checkpoint: Whose weights replace those of the model; None for the model's own.
        memo: File for the digests of large files.
    """
    files = FileDigests(memo)
    reward = _plain(cfg.reward)
    reward.pop("workers", None)
    return {
        "weights": files.of(model_files(str(cfg.model.path))),
        "checkpoint": files.of(_below(checkpoint)) if checkpoint else "",
        "loading": digest({"load": _plain(cfg.model.load), "lora": cfg.get("lora") and _plain(cfg.lora)}),
        "data": digest({name: [tuple(group[:4]) for group in groups] for name, groups in splits.items()}),
        "reward": digest([reward, _code_of(cfg.reward)]),
        "sampling": digest([_plain(cfg.rollout.evaluation_sampling), _engine(cfg), cfg.seed]),
        "protocol": digest([_plain(cfg.data.evaluation_template or cfg.template), cfg.data.evaluation_samples]),
    }


def _plain(node: Any) -> Any:
    return OmegaConf.to_container(node, resolve=True)


def _engine(cfg: DictConfig) -> list[str]:
    return [str(cfg.rollout.engine.get(name, "")) for name in ("_target_", "dtype")]


def _below(path: Path) -> list[Path]:
    return [path] if path.is_file() else [found for found in path.rglob("*") if found.is_file()]


def model_files(path: str) -> list[Path]:
    """The files of a model folder, or of the copy of the hub's model that was loaded."""
    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file():
        from huggingface_hub import try_to_load_from_cache

        folder = Path(str(try_to_load_from_cache(path, "config.json"))).parent
    return [file for file in folder.iterdir() if file.suffix in WEIGHT_FILES and file.is_file()]


def _code_of(reward: DictConfig) -> list[str]:
    """The source of all that lies beside the reward's class: who changes it changes verdicts."""
    from hydra.utils import get_class

    folder = Path(inspect.getfile(get_class(reward._target_))).parent
    return [file.read_text(errors="replace") for file in sorted(folder.glob("*.py"))]
