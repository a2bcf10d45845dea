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


@pytest.fixture(scope="module")
def built(site, tmp_path_factory):
    folder = tmp_path_factory.mktemp("built") / "site"
    site.write_sources(folder)
    return folder


def links(page):
    return re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())


def test_no_link_of_a_page_leads_nowhere(built):
    pages = sorted(built.rglob("*.md"))
    assert len(pages) > 12
    assert sum(len(links(page)) for page in pages) > 30
    broken = [
        (page.name, link) for page in pages for link in links(page) if not (page.parent / link).exists()
    ]
    assert broken == []


def test_every_file_that_a_page_names_exists():
    file = r"[\w*-]+(?:/[\w*-]+)+\.(?:py|yaml|sh|c|md|ipynb|lock)"
    told, run = rf"`(?!runs/|my_)({file})`", rf"(?:python|bash|pytest) (?:-\S+ )*({file})\b(?!` at commit)"
    pages = [path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")) if path.name != "CHANGELOG.md"]
    found = [(page.name, names) for page in pages for names in re.findall(f"{told}|{run}", page.read_text())]
    named = sorted({(page, "".join(names)) for page, names in found})
    assert len(named) > 80
    places = [ROOT, ROOT / "src", ROOT / "tests", ROOT / "src" / "modules"]
    assert [(page, path) for page, path in named if not any(any(place.glob(path)) for place in places)] == []


def test_no_link_of_a_page_leads_nowhere_in_the_repository():
    pages = [path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")) if path.name != "CHANGELOG.md"]
    broken = [
        (page.name, link) for page in pages for link in links(page) if not (page.parent / link).exists()
    ]
    assert broken == []


def test_every_picture_is_on_a_page():
    pages = (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    shown = {(page.parent / link).resolve() for page in pages for link in links(page)}
    pictures = [path for path in (ROOT / "docs").rglob("*.*") if path.suffix in (".png", ".svg")]
    assert [path.name for path in pictures if path not in shown] == []


def test_links_out_of_the_pages_become_text(site):
    def written(text, source):
        return site.LINK.sub(lambda match: site.link(match, ROOT / source), text)

    assert written("[`src/types/`](../src/types) defines", "docs/architecture.md") == "`src/types/` defines"
    assert written("[a](docs/data.md#b), [c](LICENSE)", "README.md") == "[a](data.md#b), c"
    assert written("![a](session.png)", "docs/report.md") == "![a](session.png)"


def test_a_row_of_the_index_of_methods_leads_to_the_methods_page(site, built):
    assert set(links(built / "methods.md")) >= {f"methods/{name}.md" for name in site.METHODS.values()}
    assert len(list((built / "methods").glob("*.md"))) == len(site.METHODS) > 30
    assert site.link(site.LINK.match("[a](src/contrib/gspo)"), ROOT / "README.md") == "[a](methods/gspo.md)"


def test_what_is_written_for_the_site_alone_is_there(built):
    assert "| `train/" in (built / "glossary.md").read_text()
    assert (built / "demo" / "zero_gradient.png").is_file()
    assert "## Budgets" in (built / "demo" / "report.md").read_text()
    assert "| `gcd` |" in (built / "reasoning_gym.md").read_text()
    assert not (ROOT / "docs" / "glossary.md").exists()


def test_the_menu_has_every_page_once():
    def pages(items):
        for item in items:
            for value in item.values():
                yield from pages(value) if isinstance(value, list) else [value]

    listed = list(pages(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))
    for_the_site = ["index.md", "glossary.md", "demo/report.md", "reasoning_gym.md"]
    assert sorted(listed) == sorted([*for_the_site, *(path.name for path in (ROOT / "docs").glob("*.md"))])


def test_the_pages_can_be_read_in_an_afternoon():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert sum(len(page.read_text().split()) for page in pages) <= 25_000
