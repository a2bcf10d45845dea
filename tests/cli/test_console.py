"""What console scripts share."""

from __future__ import annotations

import io
import sys

from rich.console import Console
from rich.progress import Progress, TextColumn

from tagrpo.cli.console import entry_point


def test_a_terminal_that_knows_ascii_alone_shows_a_progress_bar(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "argv", ["tagrpo-train"])
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))

    @entry_point()
    def main() -> None:
        with Progress(TextColumn("0:00:01 • 0:00:02 {task.percentage}"), console=Console(force_terminal=True)) as bar:
            bar.update(bar.add_task("", total=2), completed=1)
        print("−0.4 ± é")

    main()
    sys.stdout.flush()
    assert b"0:00:01 \\u2022 0:00:02 50.0" in written.getvalue()
    assert b"\\u22120.4 \\xb1 \\xe9" in written.getvalue()
