"""What several diagnostics need: the number of the iteration, means over ranks, files that are never half written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import fsum, isnan
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from torch import Tensor

from ..distributed import gather_objects
from ..metrics.functional import exact_parts


def current_iteration(trainer: Trainer) -> int:
    """Number of the training batch at hand, from 0 over all epochs and resumes; −1 before the first."""
    return trainer.fit_loop.total_batch_idx


def advantages_of(outputs: Any) -> Tensor:
    """[R] advantages that the training step returned, on the CPU.

    Raises:
        TypeError: `outputs` carries none.
    """
    if not isinstance(outputs, Mapping) or "advantages" not in outputs:
        found = sorted(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
        raise TypeError(
            f"Expected training_step to return a mapping with `advantages` ([R], one per rollout), but got {found}. "
            "Return them, or leave this callback out."
        )
    return outputs["advantages"].detach().cpu()


def mean_over_ranks(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Mean of each name's values over all ranks, NaN left out; names without any value are left out too.

    Rounded once: any number of ranks gives the same float as one, whoever has which values.
    """
    known = {name: [x for x in v.tolist() if not isnan(x)] for name, v in values.items()}
    gathered = gather_objects({name: (exact_parts(v), len(v)) for name, v in known.items() if v})
    means = {}
    for name in dict.fromkeys(name for part in gathered for name in part):
        found = [part[name] for part in gathered if name in part]
        means[name] = fsum(x for parts, _ in found for x in parts) / sum(count for _, count in found)
    return means


def write_json(path: Path, content: Any) -> None:
    """Write `content` to `path` at once: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(path)
