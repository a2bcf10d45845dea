"""Write the table of docs/licences.md: what `make install` installs under a licence that is not permissive.

    python scripts/licences.py

A package of requirements/cpu.lock states its licence in its metadata, else in the first words of its licence file.
"""

import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from tagrpo.analysis.sections import table
from tagrpo.files import write_section

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements" / "cpu.lock"
PAGE = ROOT / "docs" / "licences.md"
PERMISSIVE = re.compile(
    r"apache|\bmit\b|permission is hereby granted|bsd|\bisc\b|python|\bpsf|zlib|unlicense|public domain|\bcc0|\bbsl-1"
    r"|\bhpnd|historical permission|\bncsa",
    re.IGNORECASE,
)


def installed() -> dict[str, Distribution]:
    """Return the packages of the lock file that are installed here, by name; others are for other platforms."""
    found = {}
    for name in re.findall(r"^([\w.-]+)==", LOCK.read_text(encoding="utf-8"), re.MULTILINE):
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue
    return found


def licences(package: Distribution) -> list[str]:
    """Return the licences of a package, all of which apply; a choice between two stands in one text."""
    known = package.metadata
    classifiers = [
        text.rpartition(" :: ")[2]
        for text in known.get_all("Classifier", [])
        if text.startswith("License ::")
    ]
    if stated := [text for text in classifiers if text != "OSI Approved"]:
        return stated
    text = known.get("License-Expression") or known.get("License") or ""
    if not text.strip():
        files = [
            file for file in package.files or [] if re.match(r"licen[cs]e|copying", file.name, re.IGNORECASE)
        ]
        text = files[0].read_text() if files else "not stated"
    return [part.strip("() ") for part in text.strip().splitlines()[0].split(" AND ")]


def users(name: str, packages: dict[str, Distribution]) -> list[str]:
    """Return the packages that require this one; those that do so for an extra only if there are no others."""
    spelled = re.compile(rf"{re.sub('[-_.]', '[-_.]', name)}(?![\w.-])", re.IGNORECASE)
    needs = [
        (user, need)
        for user, package in packages.items()
        for need in package.requires or []
        if spelled.match(need)
    ]
    always = [user for user, need in needs if "extra ==" not in need]
    if spelled.search((ROOT / "pyproject.toml").read_text(encoding="utf-8")):
        always.insert(0, "tagrpo")
    return list(dict.fromkeys(always or [user for user, _ in needs]))


def rows(packages: dict[str, Distribution]) -> list[tuple[str, str, str]]:
    """Return the packages that are not permissive: name, licences, and the packages that require this one."""
    found = []
    for name, package in sorted(packages.items()):
        if restricted := [text for text in licences(package) if not PERMISSIVE.search(text)]:
            found.append((name, ", ".join(restricted), ", ".join(users(name, packages))))
    return found


if __name__ == "__main__":
    write_section(
        PAGE, "licences", "\n".join(table(("package", "licence", "required by"), rows(installed())))
    )
