"""Print what CHANGELOG.md says of a release: `python scripts/release_notes.py v0.2.0`.

The tag names the version in pyproject.toml. CITATION.cff and CHANGELOG.md must name the same version and date.
Only the standard library is imported, so that a release needs no environment.
"""

import argparse
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEADING = re.compile(r"^## (?P<version>\d+\.\d+\.\d+) – (?P<date>\d{4}-\d\d-\d\d)$", re.MULTILINE)
ANY_HEADING = re.compile(r"^## .*$", re.MULTILINE)


@dataclass(frozen=True)
class Release:
    """A release: its version, its date (YYYY-MM-DD) and what changed."""

    version: str
    date: str
    notes: str


def releases(changelog: str) -> list[Release]:
    """Return the releases of a changelog, the newest first.

    Raises:
        ValueError: if the first section is not "Unreleased", another heading is not "## <version> – <date>", or there
            is no release.
    """
    headings = list(ANY_HEADING.finditer(changelog))
    if not headings or headings[0].group() != "## Unreleased":
        raise ValueError("Expected the first section of CHANGELOG.md to be `## Unreleased`. Add it.")
    found = []
    for place, heading in enumerate(headings[1:], start=1):
        match = HEADING.fullmatch(heading.group())
        if match is None:
            raise ValueError(
                f"Expected a heading of CHANGELOG.md like `## 0.2.0 – 2026-11-27`, but got `{heading.group()}`. "
                "Write version and date in this form."
            )
        end = headings[place + 1].start() if place + 1 < len(headings) else len(changelog)
        found.append(Release(match["version"], match["date"], changelog[heading.end() : end].strip()))
    if not found:
        raise ValueError(
            "Expected CHANGELOG.md to have a release, `## <version> – <date>`, but it has none. Add one."
        )
    return found


def newest_release(root: Path) -> Release:
    """Return the newest release of a repository, after comparing pyproject.toml, CITATION.cff and CHANGELOG.md.

    Raises:
        ValueError: if two of the files differ in version or date.
    """
    newest = releases((root / "CHANGELOG.md").read_text())[0]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    citation = (root / "CITATION.cff").read_text()
    named = {
        "version in pyproject.toml": (project, newest.version),
        "version in CITATION.cff": (_field(citation, "version"), newest.version),
        "date-released in CITATION.cff": (_field(citation, "date-released"), newest.date),
    }
    for what, (found, expected) in named.items():
        if found != expected:
            raise ValueError(
                f"Expected {what} to be {expected}, as in the newest release of CHANGELOG.md, but got {found}. "
                "Change the file that is wrong."
            )
    return newest


def _field(citation: str, name: str) -> str:
    """Return the value of a field at the top level of a citation file, empty if it is missing."""
    match = re.search(rf"^{name}: [\"']?([^\"'\n]+)", citation, re.MULTILINE)
    return match[1].strip() if match else ""


def main() -> None:
    """Print the notes of the release that a tag names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tag", help="the tag of the release: v and the version")
    tag = parser.parse_args().tag
    try:
        release = newest_release(ROOT)
    except ValueError as error:
        parser.exit(1, f"{error}\n")
    if tag != f"v{release.version}":
        parser.exit(
            1, f"Expected the tag v{release.version}, of the version in pyproject.toml, but got {tag}.\n"
        )
    print(release.notes)


if __name__ == "__main__":
    main()
