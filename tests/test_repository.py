"""What the repository holds."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="needs the repository"
)


def git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def test_no_log_and_nothing_that_git_ignores_is_in_the_repository():
    assert git("ls-files", "--cached", "--ignored", "--exclude-standard") == []
    assert git("check-ignore", "any.log", "docs/any.log") == ["any.log", "docs/any.log"]
