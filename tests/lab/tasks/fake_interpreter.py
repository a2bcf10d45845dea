"""An interpreter that runs a script of the test's instead of the program that it is given."""

from __future__ import annotations

import sys
import textwrap


def fake_interpreter(folder, script):
    """The path of an interpreter that runs `script`, whatever its arguments are."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\n{textwrap.dedent(script)}")
    path.chmod(0o755)
    return str(path)
