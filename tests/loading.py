"""Import of the files of `scripts`, which are no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).parents[1] / "scripts"


def script(name: str) -> ModuleType:
    """Import `scripts/<name>.py` anew."""
    spec = importlib.util.spec_from_file_location(f"script_{name}", SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # data classes and named tuples look their module up
    spec.loader.exec_module(module)
    return module
