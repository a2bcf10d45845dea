"""What a notebook on a laptop may import without Lightning, vLLM or Hydra."""

from __future__ import annotations

import subprocess
import sys

PURE = [
    "tagrpo.types",
    "tagrpo.modules.advantages",
    "tagrpo.modules.experience",
    "tagrpo.modules.chunked_head",
    "tagrpo.modules.causal_policy",
    "tagrpo.modules.losses",
    "tagrpo.modules.packing",
    "tagrpo.modules.scorer",
    "tagrpo.modules.update",
    "tagrpo.metrics.functional",
    "tagrpo.rewards",
    "tagrpo.analysis.difficulty",
    "tagrpo.analysis.enumerable",
    "tagrpo.analysis.evaluation",
    "tagrpo.analysis.gradients",
    "tagrpo.analysis.objective_plots",
    "tagrpo.analysis.objectives",
    "tagrpo.analysis.rephrasings",
    "tagrpo.analysis.replay",
    "tagrpo.analysis.report",
    "tagrpo.analysis.run_plots",
    "tagrpo.rephrasing.audit",
    "tagrpo.rephrasing.checks",
    "tagrpo.rephrasing.generate",
    "tagrpo.rephrasing.judging",
    "tagrpo.rephrasing.page",
    "tagrpo.rephrasing.rules",
    "tagrpo.datamodules.overlap",
    "tagrpo.datamodules.report",
    "tagrpo.datamodules.sources.arithmetic",
    "tagrpo.datamodules.sources.hub",
    "tagrpo.datamodules.sources.jsonl",
    "tagrpo.datamodules.sources.variants",
]
PROGRAM = """
import importlib, sys
for name in {names}:
    importlib.import_module(name)
    found = sorted({{m.split(".")[0] for m in sys.modules}} & {{"lightning", "pytorch_lightning", "vllm", "hydra"}})
    assert not found, f"{{name}} imports {{found}}"
"""


def test_pure_modules_import_neither_lightning_nor_vllm_nor_hydra():
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(names=PURE)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr.splitlines()[-1]
