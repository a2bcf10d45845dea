"""The site of the documentation: every page is in its menu, and no link leads nowhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.loading import script

pytestmark = pytest.mark.pages

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site():
    return script("site")


def links(page):
    return re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())


def test_no_link_of_a_page_leads_nowhere(site, tmp_path):
    site.write_sources(tmp_path / "site")
    pages = sorted((tmp_path / "site").rglob("*.md"))
    assert len(pages) > 12
    assert sum(len(links(page)) for page in pages) > 30
    broken = [
        (page.name, link) for page in pages for link in links(page) if not (page.parent / link).exists()
    ]
    assert broken == []


def test_every_file_that_a_page_names_exists():
    file = r"[\w*-]+(?:/[\w*-]+)+\.(?:py|yaml|sh|c|md|ipynb|lock)"
    told, run = rf"`(?!runs/)({file})`", rf"(?:python|bash|pytest) (?:-\S+ )*({file})\b(?!` at commit)"
    pages = [path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")) if path.name != "CHANGELOG.md"]
    found = [(page.name, names) for page in pages for names in re.findall(f"{told}|{run}", page.read_text())]
    named = sorted({(page, "".join(names)) for page, names in found})
    assert len(named) > 80
    places = [ROOT, ROOT / "src", ROOT / "tests", ROOT / "src" / "modules"]
    assert [(page, path) for page, path in named if not any(any(place.glob(path)) for place in places)] == []


def test_links_out_of_the_pages_become_text(site, tmp_path):
    site.write_sources(tmp_path / "site")
    assert "1. `src/types/` defines what flows" in (tmp_path / "site/architecture.md").read_text()
    assert "[`src/types/`]" not in (tmp_path / "site/architecture.md").read_text()
    assert "](docs/" not in (tmp_path / "site/index.md").read_text()


def test_the_menu_has_every_page_once():
    def pages(items):
        for item in items:
            for value in item.values():
                yield from pages(value) if isinstance(value, list) else [value]

    listed = list(pages(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))
    assert sorted(listed) == sorted(["index.md", *(path.name for path in (ROOT / "docs").glob("*.md"))])
