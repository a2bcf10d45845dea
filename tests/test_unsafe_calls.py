"""Nothing that a model or a stranger wrote is evaluated or unpickled by the package."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
RUNNERS = {"eval", "exec", "compile", "__import__", "run_path", "runpy.run_path", "runpy.run_module", "loads"}
RUNNERS |= {"yaml.unsafe_load", "yaml.full_load", "pickle.Unpickler"}
RUNNERS |= {
    f"{module}.{name}"
    for module in ("pickle", "cloudpickle", "dill", "marshal")
    for name in ("load", "loads")
}
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
