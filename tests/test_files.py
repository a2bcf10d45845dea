"""Sections of pages. Files that are written whole are tested where they are read back: checkpoints, counts, replies."""

from __future__ import annotations

import pytest

from tagrpo.files import write_section

PAGE = "# é\n\n<!-- begin a -->\n{}<!-- end a -->\n\n<!-- begin b -->\nkept\n<!-- end b -->\n"


@pytest.mark.parametrize("old", ["", "old\n", "<!-- begin b -->\nold\n"])
def test_a_section_is_replaced_and_nothing_else(tmp_path, old):
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(old), encoding="utf-8")
    write_section(page, "a", "new \\1 | é\nline")
    assert page.read_text(encoding="utf-8") == PAGE.format("new \\1 | é\nline\n")


def test_a_page_without_both_marks_is_refused_and_kept(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- begin a -->\nold\n")
    with pytest.raises(ValueError, match="<!-- begin a --> .*<!-- end a --> .*page.md"):
        write_section(page, "a", "new")
    assert page.read_text() == "<!-- begin a -->\nold\n"
