"""Build the documentation as a site in build/site: `make docs`, or `python scripts/site.py --serve` to read it locally.

Its pages are the README, those of `docs/`, and those that are written for the site alone: a page for each method, the
glossary of metrics and settings, the demo's report, and the tasks of reasoning-gym. Links to files that are no pages
stay as text.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import demo_page  # noqa: E402
import glossary  # noqa: E402
import methods_page  # noqa: E402
import reasoning_gym_page  # noqa: E402

SOURCES = ROOT / "build" / "docs"
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")
METHODS = {ROOT / methods_page.folder(name): name for name in methods_page.papers()}
"""Folder or table of a method → its name. A link there leads to the method's page in the site."""


def write_sources(folder: Path) -> None:
    """Write all pages into `folder`, with links that hold there."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    shutil.copy(ROOT / "README.md", folder / "index.md")
    for page in folder.rglob("*.md"):
        source = ROOT / "README.md" if page.name == "index.md" else ROOT / "docs" / page.relative_to(folder)
        page.write_text(LINK.sub(lambda match: link(match, source), page.read_text()))  # noqa: B023
    methods_page.write(folder / "methods")
    (folder / "glossary.md").write_text(glossary.page())
    demo_page.write_report(folder / "demo")
    reasoning_gym_page.write(folder / "reasoning_gym.md")


def link(match: re.Match[str], source: Path) -> str:
    """Return a link of the page `source` as it must be in the site."""
    image, text, target, anchor = match.groups()
    path = (source.parent / target).resolve()
    docs = ROOT / "docs"
    start = docs if source.name == "README.md" else source.parent
    if path in METHODS:
        path = docs / "methods" / f"{METHODS[path]}.md"
    if path.suffix and path.is_relative_to(docs):
        return f"{image}[{text}]({os.path.relpath(path, start)}{anchor or ''})"
    return text


if __name__ == "__main__":
    write_sources(SOURCES)
    command = ["serve"] if "--serve" in sys.argv else ["build", "--strict"]
    sys.exit(
        subprocess.run(
            [Path(sys.executable).with_name("zensical"), *command], cwd=ROOT, check=False
        ).returncode
    )
