"""docs/session.png: a terminal in which commands are executed from a run's start to its report, and what that shows.

python scripts/session_picture.py      # two minutes; needs Chromium, chromedriver, selenium, and util-linux
"""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "report"))
from chromium import browser, ready  # noqa: E402

COLUMNS = 112
COMMANDS = [
    "tagrpo-train iterations=0 name=untrained",
    "tagrpo-train experiment=ta_grpo",
    "tagrpo-report runs",
]
PAGE = """<meta charset="utf-8"><body style="margin: 0; background: #fff"><pre style="background: #16181d;
color: #e6e8ec; font: 13px/1.45 monospace; margin: 0; padding: 1rem">{}</pre>
<iframe src="{}" style="width: 100%; height: 590px; border: 0"></iframe>"""


def said(command: str, folder: str) -> str:
    """What a command writes to a terminal."""
    places = {"COLUMNS": str(COLUMNS), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    terminal = ["script", "--quiet", "--return", "--command", command, "/dev/null"]
    done = subprocess.run(
        terminal, cwd=folder, env=os.environ | places, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def main(folder: str) -> None:
    """Run the commands in a folder, and photograph them with their report."""
    console = Console(record=True, width=COLUMNS, force_terminal=True, color_system="truecolor")
    for command in COMMANDS:
        console.print(f"$ {command}", style="bold", highlight=False)
        console.print(Text.from_ansi(said(command, folder)))
    page = Path(folder, "session.html")
    page.write_text(
        PAGE.format(console.export_html(inline_styles=True, code_format="{code}"), "runs/report.html")
    )
    with browser(width=920) as driver:
        driver.get(page.as_uri())
        driver.switch_to.frame(0)
        ready(driver)
        driver.switch_to.default_content()
        driver.set_window_size(920, driver.execute_script("return document.documentElement.scrollHeight"))
        driver.save_screenshot(str(ROOT / "docs" / "session.png"))


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        main(folder)
