"""Rooms but `callbacks`, `cli` and `settings` can be imported without Lightning, vLLM and Hydra, by a plain script."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
ROOMS_OF_LIGHTNING = ("callbacks", "cli", "settings")
LEAVES = ["distributed", "foreign", "seeds", "redaction", "runs.secrets"]
"""Pure files beside the pure rooms."""
SHELLS = [
    "contrib.skywork_or1.callback",
    "datamodules.questions",
    "lab.exact_pass_at_k",
    "lab.exact_zero_gradient",
    "modules.accelerator",
    "modules.policy_module",
    "modules.strategy",
    "runs.checkpoints",
    "runs.loggers",
    "runs.scalars",
]
"""Files that connect the pure code of a room with Lightning."""
FOREIGN = ("lightning", "pytorch_lightning", "vllm", "hydra")
PROGRAM = """
import importlib, sys
for name in {names}:
    importlib.import_module("tagrpo." + name)
    found = sorted({{m.split(".")[0] for m in sys.modules}} & set({foreign}))
    assert not found, f"{{name}} imports {{found}}"
"""


def pure_modules():
    folders = [path.parent for path in SOURCE.glob("*/__init__.py") if path.parent.name not in ROOMS_OF_LIGHTNING]
    files = [path.relative_to(SOURCE) for folder in folders for path in folder.rglob("*.py")]
    return sorted({*LEAVES, *(".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in files)})


def test_pure_modules_import_neither_lightning_nor_vllm_nor_hydra():
    names = [name for name in pure_modules() if name not in SHELLS]
    assert len(names) > 80, "all folders were found"
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(names=names, foreign=FOREIGN)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr.splitlines()[-1]


def test_every_exception_is_one():
    for name in SHELLS:
        text = SOURCE.joinpath(*name.split(".")).with_suffix(".py").read_text()
        assert re.search(rf"^(from|import) ({'|'.join(FOREIGN)})\b", text, re.MULTILINE), (
            f"{name} is pure: not an exception"
        )


def test_the_wheel_has_every_package():
    root = Path(__file__).parents[1]
    listed = set(tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    folders = {path.parent.relative_to(root / "src") for path in (root / "src").rglob("__init__.py")}
    configs = {"tagrpo.configs", "tagrpo.configs.comparisons"}
    assert listed == {".".join(("tagrpo", *folder.parts)) for folder in folders} | configs


RUNNERS = {"eval", "exec", "compile", "__import__", "run_path", "runpy.run_path", "runpy.run_module", "loads"}
RUNNERS |= {"yaml.unsafe_load", "yaml.full_load", "pickle.Unpickler"}
RUNNERS |= {f"{module}.{name}" for module in ("pickle", "cloudpickle", "dill", "marshal") for name in ("load", "loads")}
SAFE = {"load": ("torch", "weights_only", True), "from_pretrained": ("Auto", "trust_remote_code", False)}
SANDBOX = {("rewards/sandbox.py", "runpy.run_path")}
"""A worker process, in which verifiers compare."""


def calls(tree):
    """Dotted name, and the constants among the named arguments, of each call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            constants = {k.arg: k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}
            yield ast.unparse(node.func), constants


def test_nothing_is_evaluated_or_unpickled_in_this_process():
    found, checked = set(), 0
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        for called, constants in calls(ast.parse(path.read_text())):
            *before, last = called.split(".")
            if called in RUNNERS:
                found.add((name, called))
            owner, option, value = SAFE.get(last, (None, None, None))
            if owner and before and before[-1].startswith(owner):
                assert constants.get(option) is value, f"{name}: {called} without {option}={value}"
                checked += 1
    assert found == SANDBOX
    assert checked > 8
