"""Every equation, table, figure or section that is cited is listed by a paper of docs/papers, read or second-hand.

A citation belongs to
1. the paper that follows it: "Table 6 of Dr. GRPO";
2. in docs/papers/X.yaml, otherwise, to X;
3. elsewhere to the paper named last before it, by a name of docs/papers or an arXiv number, in the same docstring,
   comment, paragraph, list item or row of a table;
4. else, in an experiment or a paper's settings, to the paper of that file.
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
import yaml

ROOT = Path(__file__).parents[1]
PAPERS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "docs" / "papers").glob("*.yaml"))}
OTHERS = PAPERS.pop("others")  # works that no experiment is of
WORKS: dict[str, dict[str, Any]] = {
    key: {"names": [], "cited": {}} | work for key, work in {**PAPERS, **OTHERS}.items()
}
NAMES = {name: key for key, work in WORKS.items() for name in [*work["names"], work["arxiv"]] if name}
EXPERIMENTS = {experiment: key for key, paper in PAPERS.items() for experiment in paper["own"]}
OF_A_PAPER = {key for key, paper in PAPERS.items() if paper["arxiv"]}
STATES = ("read", "second-hand")

KINDS = {"Eq": "Eq.", "Fig": "Fig.", "Figure": "Fig.", "§": "section", "Section": "section", "Corollarie": "Corollary"}
KIND = (
    r"Eqs?\.|Figs?\.|Figures?|Tables?|[sS]ections?|§§?|Appendix|Algorithms?|Box|Listings?|Theorems?|Corollar(?:y|ies)"
)
NUMBER = r"(?:\d+(?:\.\d+)*[a-z]?|[A-Z](?:\.\d+)*)(?![\w@*])"
CITED = rf"(?<![\w.])(?:{KIND})[ \n]?{NUMBER}(?:(?:,? and |, | to | or |[-–]){NUMBER})*"
CITATION = re.compile(CITED.replace("(?:", "(?P<kind>", 1).replace(f"]?{NUMBER}", f"]?(?P<numbers>{NUMBER}") + ")")
NAME = re.compile(
    r"(?<![\w-])(?P<name>" + "|".join(map(re.escape, sorted(NAMES, key=len, reverse=True))) + r"|\d{4}\.\d{5})(?![\w-])"
)
FOLLOWED = re.compile(rf"(?:(?:,| and|, and|;)[ \n]{CITED})*[ \n]of[ \n](?:arXiv[ \n])?{NAME.pattern}")


@dataclass(frozen=True)
class Citation:
    file: str
    line: int
    place: str
    """One place, such as `Eq. 3`."""
    work: str | None
    """Key of `WORKS`; None where no paper is named."""
    block: str


def places(kind: str, numbers: str) -> Iterator[str]:
    """("Figs.", "3 to 5") → Fig. 3, Fig. 4, Fig. 5."""
    singular = kind.rstrip(".").rstrip("s") if kind not in ("§", "§§") else "§"
    singular = KINDS.get(singular, singular.replace("Section", "section"))
    parts = re.split(r"(,? and |, | to | or |[-–])", numbers)
    yield f"{singular} {parts[0]}"
    for separator, last, number in zip(parts[1::2], parts[:-1:2], parts[2::2], strict=True):
        if separator in (" to ", "-", "–"):
            stem, begin, end = *re.fullmatch(r"(.*?)(\d+)", last).groups(), re.fullmatch(r".*?(\d+)", number)[1]
            yield from (f"{singular} {stem}{middle}" for middle in range(int(begin) + 1, int(end)))
        yield f"{singular} {number}"


def paragraphs(text: str, line: int = 1, rows: str = r"\||- |#") -> Iterator[tuple[int, str]]:
    """(first line, text) of what stands between blank lines; a line that begins with one of `rows` begins another."""
    block: list[str] = []
    for number, row in enumerate([*text.split("\n"), ""], line):
        if block and (not row.strip() or re.match(rf"\s*(?:{rows})", row)):
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
    for number, comment in [*((t.start[0], t.string) for t in tokens if t.type == tokenize.COMMENT), (-1, "")]:
        if run and number != run[-1][0] + 1:
            yield run[0][0], "\n".join(comment for _, comment in run)
            run = []
        run.append((number, comment))


def blocks(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of all that stands in a file and is read as one piece."""
    text = path.read_text()
    if path.suffix == ".py":
        yield from of_python(text)
    elif path.suffix == ".ipynb":
        for number, part in enumerate(json.loads(text)["cells"]):
            source = "".join(part["source"])
            found = of_python(re.sub(r"(?m)^[%!]", "# ", source)) if part["cell_type"] == "code" else paragraphs(source)
            yield from ((number, block) for _, block in found)
    elif path.parent == ROOT / "docs" / "papers":
        key = ""
        for number, row in enumerate(text.splitlines(), 1):  # a row is one piece
            key = row if re.match(r"\w", row) else key
            if not key.startswith("cited:"):
                yield number, row
    else:
        yield from (
            paragraphs(text, rows=r"\||- |#{2,} |tagrpo-") if path.suffix == ".md" else paragraphs(text, rows="$")
        )


def of_file(path: Path) -> str | None:
    """The paper that a file is on."""
    folder, _, rest = (
        str(path.relative_to(ROOT / "configs")).partition("/") if ROOT / "configs" in path.parents else ("", "", "")
    )
    if folder == "experiment":
        return EXPERIMENTS[path.stem]
    if folder == "settings":
        return rest.split("/")[0]
    return None


def attributed(match: re.Match[str], block: str, path: Path) -> str | None:
    """The work that a citation belongs to."""
    if after := FOLLOWED.match(block, match.end()):
        return NAMES.get(after["name"], after["name"])
    if path.parent == ROOT / "docs" / "papers" and path.stem in OF_A_PAPER:
        return path.stem
    named = [name["name"] for name in NAME.finditer(block, 0, match.start())]
    return NAMES.get(named[-1], named[-1]) if named else of_file(path)


def files() -> Iterator[Path]:
    """All that the project says. The page on methods is made of docs/papers; the plan and the digests are records."""
    yield from [ROOT / "README.md", *(ROOT / "src").rglob("*.py"), *(ROOT / "configs").rglob("*.yaml")]
    yield from (
        path for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".yaml") and path.name != "methods.md"
    )
    yield from (path for path in (ROOT / "studies").rglob("*") if path.suffix in (".md", ".yaml", ".py"))
    yield from (ROOT / "notebooks").glob("*.ipynb")


def citations_of(path: Path) -> Iterator[Citation]:
    """All citations of a file."""
    for line, block in blocks(path):
        for match in CITATION.finditer(block):
            work = attributed(match, block, path)
            where = line + block.count("\n", 0, match.start())
            for place in places(match["kind"], match["numbers"]):
                yield Citation(str(path.relative_to(ROOT)), where, place, work, block)


@cache
def citations() -> list[Citation]:
    return [citation for path in files() for citation in citations_of(path)]


def told(found: list[Citation]) -> str:
    return "\n" + "\n".join(sorted(f"{c.file}:{c.line}: {c.place} of {c.work}" for c in found))


def test_every_work_has_a_name_of_its_own_and_says_which_text_was_at_hand():
    assert len(NAMES) == sum(len(work["names"]) + bool(work["arxiv"]) for work in WORKS.values())
    for key, work in WORKS.items():
        if key != "ours":
            assert work["names"], key
            assert work["text"]["state"] in (*STATES, "open"), key
            assert work["text"]["what"], key
        for place, entry in work["cited"].items():
            assert entry["state"] in STATES, f"{key}: {place}"
            assert entry["says"], f"{key}: {place}"


def test_every_citation_belongs_to_a_paper():
    lost = [citation for citation in citations() if citation.work is None]
    assert not lost, f"Name the paper, or its arXiv number, before the citation:{told(lost)}"


@pytest.mark.parametrize("key", [*WORKS, None])
def test_every_citation_is_listed_by_its_paper(key):
    unlisted = [c for c in citations() if (c.work == key or (key is None and c.work not in WORKS))
                and c.place not in WORKS.get(c.work, {"cited": {}})["cited"]]  # fmt: skip
    assert not unlisted, (
        f"List each under `cited` in docs/papers, with its state, or take the number out:{told(unlisted)}"
    )


@pytest.mark.parametrize("key", WORKS)
def test_nothing_is_listed_that_nobody_cites(key):
    cited = {citation.place for citation in citations() if citation.work == key}
    assert set(WORKS[key]["cited"]) - cited == set()


def test_a_place_that_was_not_read_is_called_second_hand_where_it_is_cited():
    states = {(key, place): entry["state"] for key, work in WORKS.items() for place, entry in work["cited"].items()}
    silent = [c for c in citations() if states.get((c.work, c.place)) == "second-hand" and "second-hand" not in c.block]
    assert not silent, f"Say 'second-hand' beside each:{told(silent)}"


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_whose_paper_was_not_read_says_so(experiment):
    if PAPERS[EXPERIMENTS[experiment]].get("text", {"state": "read"})["state"] != "read":
        title = (ROOT / "configs" / "experiment" / f"{experiment}.yaml").read_text().splitlines()[1]
        assert "second-hand" in title


def test_lists_ranges_and_letters_are_taken_apart():
    def found(text):
        return [place for match in CITATION.finditer(text) for place in places(match["kind"], match["numbers"])]

    assert found("Eq. 11-15 and Eqs. 2 and 4") == ["Eq. 11", "Eq. 12", "Eq. 13", "Eq. 14", "Eq. 15", "Eq. 2", "Eq. 4"]
    assert found("Figs. 3 to 5, Fig. 6b; Tables 1, 3 and 4") == [
        "Fig. 3", "Fig. 4", "Fig. 5", "Fig. 6b", "Table 1", "Table 3", "Table 4",
    ]  # fmt: skip
    assert found("§4.1.2, sections 3.2 to 3.4, Appendix A.2, Appendix\nC") == [
        "section 4.1.2", "section 3.2", "section 3.3", "section 3.4", "Appendix A.2", "Appendix C",
    ]  # fmt: skip
    assert found("section 4.1: 1,024 rollouts; TableLogger(1); Table 2 of the paper, 8 GPUs") == [
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
    papers, experiments = ROOT / "docs" / "papers", ROOT / "configs" / "experiment"
    assert of("Eq. 3", papers / "dapo.yaml") == of("Eq. 3", experiments / "dapo.yaml") == ["dapo"]
    assert of("As DAPO (Eq. 8), Table 6 of Dr. GRPO", papers / "gmpo.yaml") == ["gmpo", "dr_grpo"]
    assert of("Eq. 3") == [None]
    assert of("arXiv 9999.00000, Eq. 3") == ["9999.00000"]
