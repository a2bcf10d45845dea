"""Build the documentation as a site in build/site: `make docs`, or `python scripts/site.py --serve` to read it locally.

Pages are those of `docs/` and the README. Links to files that are no pages stay as text.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "build" / "docs"
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")


def write_sources(folder: Path) -> None:
    """Copy `docs/` and the README into `folder`, with links that hold there."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    shutil.copy(ROOT / "README.md", folder / "index.md")
    for page in folder.rglob("*.md"):
        source = ROOT / "README.md" if page.name == "index.md" else ROOT / "docs" / page.relative_to(folder)
        page.write_text(LINK.sub(lambda match: link(match, source), page.read_text()))  # noqa: B023


def link(match: re.Match[str], source: Path) -> str:
    """A link of the page `source`, as it must be in the site."""
    image, text, target, anchor = match.groups()
    path = (source.parent / target).resolve()
    docs = ROOT / "docs"
    if path.suffix and path.is_relative_to(docs):
        start = docs if source.name == "README.md" else source.parent
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
