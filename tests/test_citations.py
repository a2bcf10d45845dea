"""Every equation, table, figure or section that is cited is listed by the file of a paper, read or second-hand.

A citation belongs to
1. the paper that follows it: "Table 6 of Dr. GRPO";
2. in the file of a paper or method, otherwise, to that paper;
3. elsewhere to the paper named last before it, by one of its names or an arXiv number, in the same docstring,
   comment, paragraph, list item or row of a table;
4. else to the paper of the file: of an experiment, of a paper's settings, of a comparison that bears its name; of the
   study's frozen claims, TA-GRPO.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tagrpo.settings.methods import CONTRIB, options_of, read_paper, tables

pytestmark = pytest.mark.pages

ROOT = Path(__file__).parents[1]
FILES = tables()
PAPERS: dict[str, dict[str, Any]] = {
    name: {"names": [], "text": {"state": "read"}, "cited": {}} | read_paper(path)
    for name, path in sorted(FILES.items())
}
NAMES = {name: key for key, paper in PAPERS.items() for name in [*paper["names"], paper["arxiv"]] if name}
EXPERIMENTS = {experiment: key for key, paper in PAPERS.items() for experiment in paper["own"]}
LISTED = {(key, place): entry for key, paper in PAPERS.items() for place, entry in paper["cited"].items()}
OWNER = {path: key for key, path in FILES.items()}
STATES = ("read", "second-hand")

KINDS = {
    "Eq": "Eq.",
    "Fig": "Fig.",
    "Figure": "Fig.",
    "§": "section",
    "Section": "section",
    "Corollarie": "Corollary",
}
KIND = r"Eqs?\.|Figs?\.|Figures?|Tables?|[sS]ections?|§§?|Appendix|Algorithms?|Box|Listings?|Theorems?|Corollar(?:y|ies)"
NUMBER = r"(?:\d+(?:\.\d+)*[a-z]?|[A-Z](?:\.\d+)*)(?![\w@*])"
NUMBERS = rf"{NUMBER}(?:(?:,? and |, | to | or |[-–]){NUMBER})*"
CITATION = re.compile(rf"(?<![\w.])(?P<kind>{KIND})[ \n]?(?P<numbers>{NUMBERS})")
NAME = re.compile(
    rf"(?<![\w-])(?P<name>{'|'.join(map(re.escape, sorted(NAMES, key=len, reverse=True)))}|\d{{4}}\.\d{{5}})(?![\w-])"
)
FOLLOWED = re.compile(rf"(?:,? (?:and )?(?:{KIND})[ \n]?{NUMBERS})*[ \n]of[ \n](?:arXiv[ \n])?{NAME.pattern}")


@dataclass(frozen=True)
class Citation:
    """One place of one paper, where it is cited."""

    file: str
    line: int
    place: str
    """Such as `Eq. 3`."""
    paper: str | None
    """Key of `PAPERS`, an arXiv number that is none's, or None where no paper is named."""
    block: str
    """The docstring, paragraph or row that it stands in."""


def places(kind: str, numbers: str) -> Iterator[str]:
    """("Figs.", "3 to 5") → Fig. 3, Fig. 4, Fig. 5."""
    singular = kind.rstrip(".").rstrip("s").replace("§§", "§")
    singular = KINDS.get(singular, "section" if singular == "section" else singular)
    first, *rest = re.split(r"(,? and |, | to | or |[-–])", numbers)
    yield f"{singular} {first}"
    for separator, last, number in zip(rest[::2], [first, *rest[1::2]], rest[1::2], strict=False):
        if separator in (" to ", "-", "–"):
            stem, begin = re.fullmatch(r"(.*?)(\d+)", last).groups()
            end = re.fullmatch(r".*?(\d+)", number)[1]
            yield from (f"{singular} {stem}{middle}" for middle in range(int(begin) + 1, int(end)))
        yield f"{singular} {number}"


def paragraphs(text: str, begins: str) -> Iterator[tuple[int, str]]:
    """(line, text) of what stands between blank lines; a line that begins with one of `begins` begins another."""
    block: list[str] = []
    for number, row in enumerate([*text.split("\n"), ""], 1):
        if block and (not row.strip() or re.match(rf"\s*(?:{begins})", row)):
            yield number - len(block), "\n".join(block)
            block = []
        if row.strip():
            block.append(row)


def of_python(text: str) -> Iterator[tuple[int, str]]:
    """Strings, docstrings above all, and runs of comments."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    run: list[tuple[int, str]] = []
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    for number, comment in [
        *((t.start[0], t.string) for t in tokens if t.type == tokenize.COMMENT),
        (-1, ""),
    ]:
        if run and number != run[-1][0] + 1:
            yield run[0][0], "\n".join(text for _, text in run)
            run = []
        run.append((number, comment))


def of_paper(text: str) -> Iterator[tuple[int, str]]:
    """The rows of a paper's table or settings, without its list of what is cited."""
    part = ""
    for number, row in enumerate(text.splitlines(), 1):
        part = row if re.match(r"\w", row) else part
        if not part.startswith("cited:"):
            yield number, row


def blocks(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of all that is read as one piece; in a notebook the line is the number of the cell."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        for number, cell in enumerate(json.loads(text)["cells"]):
            source = "".join(cell["source"])
            code = cell["cell_type"] == "code"
            found = of_python(re.sub(r"(?m)^[%!]", "# ", source)) if code else paragraphs(source, r"\||- |#")
            yield from ((number, block) for _, block in found)
    elif path in FILES.values() or settings_of(path):
        yield from of_paper(text)
    else:
        yield from (
            of_python(text)
            if path.suffix == ".py"
            else paragraphs(text, r"\||- |#{2,} |tagrpo-" if path.suffix == ".md" else "$")
        )


def of_file(path: Path) -> str | None:
    """The paper that a file is on."""
    name = str(path.relative_to(ROOT))
    if name.startswith("configs/experiment/"):
        return EXPERIMENTS.get(path.stem)
    if CONTRIB in path.parents:
        return path.relative_to(CONTRIB).parts[0]
    if name.startswith(("configs/comparisons/", "configs/protocol/")):
        return next((key for key in PAPERS if path.stem.startswith(key)), None)
    return "ta_grpo" if name == "studies/second/README.md" else None


def settings_of(path: Path) -> str | None:
    """The paper whose settings a file has."""
    parts = path.parts
    return parts[parts.index("settings") + 1] if "settings" in parts and path.suffix == ".yaml" else None


def attributed(match: re.Match[str], block: str, path: Path) -> str | None:
    """The paper that a citation belongs to."""
    if after := FOLLOWED.match(block, match.end()):
        return NAMES.get(after["name"], after["name"])
    if (key := OWNER.get(path) or settings_of(path)) and PAPERS[key]["arxiv"]:
        return key
    named = [name["name"] for name in NAME.finditer(block, 0, match.start())]
    return NAMES.get(named[-1], named[-1]) if named else of_file(path)


def files() -> Iterator[Path]:
    """All that the project says."""
    yield ROOT / "README.md"
    for folder, suffixes in {
        "src": ".py .yaml",
        "configs": ".yaml",
        "docs": ".md .yaml",
        "studies": ".md .py .yaml",
    }.items():
        yield from (path for path in sorted((ROOT / folder).rglob("*.*")) if path.suffix in suffixes.split())
    yield from (ROOT / "notebooks").glob("*.ipynb")


@cache
def citations() -> list[Citation]:
    return [
        Citation(
            file=str(path.relative_to(ROOT)),
            line=line + block.count("\n", 0, match.start()),
            place=place,
            paper=attributed(match, block, path),
            block=block,
        )
        for path in files()
        for line, block in blocks(path)
        for match in CITATION.finditer(block)
        for place in places(match["kind"], match["numbers"])
    ]


def told(found: list[Citation]) -> str:
    return "\n" + "\n".join(sorted({f"{c.file}:{c.line}: {c.place} of {c.paper}" for c in found}))


def test_every_paper_has_names_of_its_own_and_says_which_text_was_at_hand():
    assert len(NAMES) == sum(len(paper["names"]) + bool(paper["arxiv"]) for paper in PAPERS.values())
    for key in set(PAPERS) - {"ours", "adaptive_rephrasings"}:
        assert PAPERS[key]["names"], key
        assert PAPERS[key]["text"]["state"] in (*STATES, "open"), key
        assert PAPERS[key]["text"].get("what"), key
    for where, entry in LISTED.items():
        assert entry["state"] in STATES, where
        assert entry["says"], where


def test_every_citation_belongs_to_a_paper():
    lost = [citation for citation in citations() if citation.paper not in PAPERS]
    assert not lost, f"Name a paper, or its arXiv number, before the citation:{told(lost)}"


def test_every_citation_is_listed_by_its_paper():
    unlisted = [c for c in citations() if c.paper in PAPERS and (c.paper, c.place) not in LISTED]
    assert not unlisted, (
        f"List each under `cited` in the paper's file, with its state, or take the number out:{told(unlisted)}"
    )


def test_nothing_is_listed_that_nobody_cites():
    assert set(LISTED) - {(citation.paper, citation.place) for citation in citations()} == set()


def test_a_place_that_was_not_read_is_called_second_hand_where_it_is_cited():
    unread = {where for where, entry in LISTED.items() if entry["state"] == "second-hand"}
    silent = [c for c in citations() if (c.paper, c.place) in unread and "second-hand" not in c.block.lower()]
    assert not silent, f"Say 'second-hand' beside each:{told(silent)}"


def test_an_experiment_whose_paper_was_not_read_says_so():
    texts = options_of("experiment")
    unread = [name for name, key in EXPERIMENTS.items() if PAPERS[key]["text"]["state"] != "read"]
    assert unread
    titles = [texts[name].splitlines()[1] for name in unread]
    assert [title for title in titles if not re.search(r"second-hand|not read", title)] == []


def test_lists_ranges_and_letters_are_taken_apart():
    def found(text):
        return [
            place for match in CITATION.finditer(text) for place in places(match["kind"], match["numbers"])
        ]

    assert found("Eq. 11-15 and Eqs. 2 and 4") == [
        "Eq. 11",
        "Eq. 12",
        "Eq. 13",
        "Eq. 14",
        "Eq. 15",
        "Eq. 2",
        "Eq. 4",
    ]
    assert found("Figs. 3 to 5, Fig. 6b; Tables 1, 3 and 4") == [
        "Fig. 3", "Fig. 4", "Fig. 5", "Fig. 6b", "Table 1", "Table 3", "Table 4",
    ]  # fmt: skip
    assert found("§4.1.2, sections 3.2 to 3.4, Appendix A.2, Appendix\nC, Corollary 2") == [
        "section 4.1.2", "section 3.2", "section 3.3", "section 3.4", "Appendix A.2", "Appendix C", "Corollary 2",
    ]  # fmt: skip
    assert found("section 4.1: 1,024 rollouts; TableLogger(1); Table 2 of X, 8 GPUs") == [
        "section 4.1",
        "Table 2",
    ]


def test_a_citation_belongs_to_the_paper_after_it_else_to_the_last_one_before_it():
    def of(text, path=ROOT / "README.md"):
        return [attributed(match, text, path) for match in CITATION.finditer(text)]

    assert of("TA-GRPO pools (Eq. 3), Dr. GRPO does not (Table 6; Eq. 1 of arXiv 2508.10751)") == [
        "ta_grpo", "dr_grpo", "pass_at_k",
    ]  # fmt: skip
    assert of("Table 7 and Figs. 3 and 4 of Pass@k training") == ["pass_at_k", "pass_at_k"]
    experiments = ROOT / "configs" / "experiment"
    assert of("Eq. 3", FILES["dapo"]) == of("Eq. 3", experiments / "dapo.yaml") == ["dapo"]
    assert of("As DAPO (Eq. 8), Table 6 of Dr. GRPO", FILES["gmpo"]) == ["gmpo", "dr_grpo"]
    assert of("Eq. 3") == [None]
    assert of("arXiv 9999.00000, Eq. 3") == ["9999.00000"]
