"""Makes docs/methods.md from the tables of papers, what each one ran, and from the configuration, what runs here.

    python scripts/methods_page.py

The tables are those of `tagrpo.settings.methods`. Every difference between the two is on the page. One that has no
reason, in the value's row or in `SHARED`, is an error, and so is a reason for a difference that does not exist.
"""

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tagrpo.cli.diff import ABSENT
from tagrpo.cli.diff import settings as resolved
from tagrpo.settings import methods

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "methods.md"
PAPERS = ["ta_grpo", "pass_at_k", "prompt_augmentation", "dapo", "dr_grpo", "gspo", "gmpo", "cispo", "rloo"]
PAPERS += ["exgrpo", "grpo_lead", "max_rl", "negative_reinforcement", "pkpo", "rs_grpo", "ngrpo"]
PAPERS += ["entropy_mechanism", "high_entropy_tokens", "unlikeliness", "rl_zvp"]
PAPERS += [
    "mathforge",
    "ucpo",
    "entropy_shaped",
    "luffy",
    "skywork_or1",
    "prorl",
    "cog_drift",
    "questa",
    "svs",
]
PAPERS += ["outcome_exploration", "greso", "ours", "adaptive_rephrasings"]
EVALUATION = {
    "data.evaluation_samples": "samples",
    "rollout.evaluation_sampling.temperature": "temperature",
    "rollout.evaluation_sampling.top_p": "top-p",
    "rollout.evaluation_sampling.max_new_tokens": "tokens",
}
"""Keys of the evaluation → columns of its table."""
SHARED = dict.fromkeys(EVALUATION, "all methods are evaluated alike") | {
    "data.train.within.level": "`data=math` has all levels of MATH's training set; `data=math_3to5` has these",
}
"""Key → why it differs from paper to paper and not here, unless a paper's file has a reason of its own."""
PLAIN = re.compile(
    r"(not (stated|seen|defined)|std is not defined|full text not at hand)[\w ]{0,16}", re.IGNORECASE
)
"""A source that says no more than that a value is open."""
MANY = 3
"""Papers that must leave a setting open for it to be said once."""
INTRODUCTION = """\
# Methods

What each paper ran, what runs here, and where the two differ. This page is made by `python scripts/methods_page.py`
from the tables that have the papers' values with their places (`configs/papers/<paper>.yaml`, and
`src/contrib/<method>/paper.yaml`), and from the configuration; a test fails where they differ without a reason.

`experiment=X` is the method with the settings of its paper: the paper's value, else that of its authors' code, else our
own. `recipe=authors` is what the authors' code ran where it differs from their paper. `recipe=common` puts all methods
on the settings of TA-GRPO, so that two methods differ in nothing but what defines them.
`tagrpo-diff "experiment=X" "experiment=X recipe=common"` prints what a recipe changes.

*Text* says whether the paper was read in full. *Differ* counts settings that are not the paper's (those of the
evaluation are in a table of their own), *open* those that neither paper nor code states. A command is *approximate*
where something had to be chosen that the paper does not state, or that is not here.
"""
ALIKE = """
## The same for all

All methods are evaluated alike, as TA-GRPO's authors do, so that they can be compared:
{here}. What the papers did, where they say so:
"""
PROTOCOLS = """
`protocol=ta_grpo`, `pass_at_k` and `prompt_augmentation` evaluate as those papers do; for any other set
`data.evaluation_samples` and `rollout.evaluation_sampling.*`.

Many papers leave settings open. Those that all of them have alike here, at `scale=paper`:
"""
EXPERIMENTS = """
In the tables of experiments each question is asked in 1 + N prompts, each prompt gets G responses; rewards are
normalised over a `pool` (a question with its rephrasings, a prompt, or the batch), and a response is scored under the
prompt that `anchor` names: its own or the original. With `recipe=common` the last column's keys differ from
`experiment=grpo`, and no other. Gains, in points over the policy that training began with, are those of the
[benchmark](benchmark.md).
"""


@cache
def settings(experiment: str, recipe: str, scale: str = "paper") -> dict[str, Any]:
    """The resolved settings of an experiment."""
    return resolved([f"experiment={experiment}", f"recipe={recipe}", f"scale={scale}"])


@cache
def papers() -> dict[str, dict[str, Any]]:
    """Name → content of the paper's table, in the order of the page."""
    tables = methods.tables()
    listed = [name for name in PAPERS if name in tables]
    others = [name for name in tables if name not in PAPERS]
    found = {}
    for name in [*listed, *others]:
        found[name] = {"values": {}} | methods.read_paper(tables[name])
    return found


def table_of(paper: dict[str, Any], experiment: str) -> dict[str, Any]:
    """Key → what the paper ran for this experiment."""
    return {**paper["values"], **paper["own"][experiment]}


def wanted(row: dict[str, Any], recipe: str) -> Any:
    """The value that a recipe should have, or `ABSENT` where paper and code leave it open."""
    order = ("paper", "authors") if recipe == "paper" else ("authors", "paper")
    return next((row[side] for side in order if side in row), ABSENT)


def recipes_of(name: str) -> list[str]:
    """`paper`, and `authors` where there are settings of that name."""
    return ["paper"] + ["authors"] * ("authors" in methods.recipes_of(name))


def departures(name: str, paper: dict[str, Any], experiment: str) -> dict[tuple[str, str], str]:
    """(recipe, key) → reason, for every setting that is not the paper's or its authors'.

    Raises:
        ValueError: a difference has no reason.
    """
    found = {}
    for recipe in recipes_of(name):
        here = settings(experiment, recipe)
        for key, row in table_of(paper, experiment).items():
            want, have = wanted(row, recipe), here.get(key, ABSENT)
            if want in (ABSENT, have):
                continue
            if recipe not in row.get("because", {}) and key not in SHARED:
                raise ValueError(
                    f"The table of {name} has {key} = {want} for {experiment}, but recipe={recipe} has {have}. Correct "
                    f"the setting, or give the reason in the row: because: {{{recipe}: …}}."
                )
            found[recipe, key] = row.get("because", {}).get(recipe) or SHARED[key]
    return found


def is_open(row: dict[str, Any]) -> bool:
    """Neither the paper nor its authors' code has a value."""
    return wanted(row, "paper") == ABSENT


@cache
def said_once() -> dict[tuple[str, str], list[str]]:
    """(key, value here) → the papers that leave it open without saying more, where they are many."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, paper in papers().items():
        for experiment in paper["own"]:
            here = settings(experiment, "paper")
            for key, row in table_of(paper, experiment).items():
                if is_open(row) and PLAIN.fullmatch(row["open"]) and key not in EVALUATION:
                    names = found.setdefault((key, cell(here.get(key, ABSENT))), [])
                    names += [] if name in names else [name]
    return {where: names for where, names in sorted(found.items()) if len(names) >= MANY}


def cell(value: Any) -> str:
    """A value as the cell of a table."""
    return json.dumps(value) if isinstance(value, bool | None) else str(value)


def row_of(cells: Sequence[Any]) -> str:
    """A line of a table."""
    return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", str(text)) for text in cells) + " |"


def table(titles: str, lines: Iterator[str] | Sequence[str]) -> Iterator[str]:
    """Titles, as in "a | b", and lines; nothing without lines."""
    if kept := list(lines):
        yield f"\n| {titles} |\n|{'---|' * (titles.count('|') + 1)}"
        yield from kept
        yield ""


def folded(summary: str, lines: Iterator[str] | Sequence[str]) -> Iterator[str]:
    """Lines under a summary that opens them; nothing without lines."""
    if kept := list(lines):
        yield f"\n<details markdown>\n<summary>{summary}</summary>\n"
        yield from kept
        yield "\n</details>"


def code(*names: str) -> str:
    """Names as code, with commas between them."""
    return ", ".join(f"`{name}`" for name in names)


def heading(name: str) -> str:
    """Name of a paper on the page."""
    return next(iter(papers()[name].get("names") or []), papers()[name]["title"])


def link(name: str) -> str:
    """A link to a paper's part of the page."""
    return f"[{heading(name)}](#{re.sub(r'[^a-z0-9 -]', '', heading(name).lower()).replace(' ', '-')})"


@cache
def gains() -> dict[str, str]:
    """Experiment → its gain in pass@32, of the benchmark."""
    return json.loads((ROOT / "studies" / "benchmark" / "digest" / "gains.json").read_text())


def place(row: dict[str, Any]) -> str:
    """Where the value is stated."""
    return row["source"] if "paper" in row else f"code: {row['authors_source'].removeprefix('code: ')}"


def stated(row: dict[str, Any]) -> tuple[str, str]:
    """The values of the paper and of its authors' code, with their places."""
    paper = f"{cell(row['paper'])} ({row['source']})" if "paper" in row else f"open: {row['open']}"
    return paper, f"{cell(row['authors'])} ({row['authors_source']})" if "authors" in row else ""


def experiments(paper: dict[str, Any]) -> Iterator[str]:
    """A line per experiment: what it is, and the keys in which it differs from GRPO on common settings."""
    for experiment in paper["own"]:
        here = settings(experiment, "common")
        shape = [here["data.num_rephrasings"], here["data.samples_per_prompt"]]
        shape += [
            here.get("advantage.group_by", "question"),
            here["policy.anchor"],
            gains().get(experiment, "–"),
        ]
        keys = code(*paper["defines"][experiment]) or "none"
        title = re.split(r" {4,}", methods.options_of("experiment")[experiment].splitlines()[1])[1]
        yield row_of([f"`{experiment}`", title, *shape, keys])


def compared(name: str, paper: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Lines of the settings that differ from the paper's or are open, and of those that agree.

    Left out is what `evaluations` and `said_once` have.

    Raises:
        ValueError: see `departures`; or a reason stands for no difference.
    """
    differing: dict[tuple[str, ...], list[str]] = {}
    agreeing: dict[tuple[str, ...], list[str]] = {}
    used = set()
    for experiment in paper["own"]:
        reasons = departures(name, paper, experiment)
        used |= set(reasons)
        for key, row in table_of(paper, experiment).items():
            here = {
                recipe: cell(settings(experiment, recipe).get(key, ABSENT)) for recipe in recipes_of(name)
            }
            told: dict[tuple[str, str], str] = {}
            for recipe, value in here.items():
                if (recipe, key) in reasons:
                    told.setdefault((value, reasons[recipe, key]), recipe)
            for (value, reason), recipe in told.items():
                if key not in EVALUATION or reason != SHARED[key]:
                    shown = value if recipe == "paper" else f"{value} with `recipe={recipe}`"
                    differing.setdefault((key, *stated(row), shown, reason), []).append(experiment)
            plain = key in EVALUATION and PLAIN.fullmatch(row.get("open", ""))
            if is_open(row) and not plain and name not in said_once().get((key, here["paper"]), []):
                differing.setdefault((key, *stated(row), here["paper"], ""), []).append(experiment)
            elif not is_open(row) and not told:
                agreeing.setdefault((key, here["paper"], place(row)), []).append(experiment)
    rows = [item for experiment in paper["own"] for item in table_of(paper, experiment).items()]
    if unused := {(recipe, key) for key, row in rows for recipe in row.get("because", {})} - used:
        raise ValueError(
            f"The file of {name} gives reasons for what does not differ: {sorted(unused)}. Delete them."
        )

    def lines(found: dict[tuple[str, ...], list[str]]) -> list[str]:
        whose = {
            what: f" of {code(*who)}" if len(who) < len(paper["own"]) else "" for what, who in found.items()
        }
        return [row_of([f"`{key}`{whose[key, *rest]}", *rest]) for key, *rest in sorted(found)]

    return lines(differing), lines(agreeing)


def section(name: str, paper: dict[str, Any]) -> Iterator[str]:
    """The part of the page on one paper.

    Raises:
        ValueError: see `compared`.
    """
    differing, agreeing = compared(name, paper)
    yield f"\n## {heading(name)}\n"
    if paper["arxiv"]:
        version = f" {paper['version']}" if paper["version"] else ""
        yield (
            f"*{paper['title']}*, [arXiv {paper['arxiv']}](https://arxiv.org/abs/{paper['arxiv']}){version}. "
            + (f"At hand: {paper['text']['what']}." if "text" in paper else "")
            + (f" Code: {paper['code']}" if paper["code"] else "")
        )
    yield ""
    yield from (f"- {line}" for line in paper.get("differs", []))
    yield from table(
        "experiment | method | N | G | pool | anchor | gain in pass@32 | keys", experiments(paper)
    )
    commands = paper.get("reproduces", [])
    lines = (
        row_of([of["place"], code(*filter(None, [of["command"]])), of["how"], of["because"]])
        for of in commands
    )
    yield from table("of the paper | command | how | because", lines)
    yield from table("differs or is open | paper | authors' code | here, `scale=paper` | why", differing)
    beside = [
        f"- {entry['what']}"
        + (f" ({entry['source']})" if entry.get("source") else "")
        + f". Here: {entry['ours']}."
        for entry in paper.get("not_keys", [])
    ]
    yield from folded(f"What no setting expresses: {len(beside)}", beside)
    yield from folded(
        f"Settings that agree: {len(agreeing)}", list(table("setting | value | from", agreeing))
    )
    yield from folded("Notes on the paper", [f"- {note}" for note in paper.get("notes", [])])


def overview() -> Iterator[str]:
    """A line per paper."""
    for name, paper in papers().items():
        differ = {key for experiment in paper["own"] for _, key in departures(name, paper, experiment)}
        rows = [row for experiment in paper["own"] for row in table_of(paper, experiment).items()]
        hows = [entry["how"] for entry in paper.get("reproduces", [])]
        commands = ", ".join(f"{hows.count(how)} {how}" for how in dict.fromkeys(hows)) or "–"
        arxiv = f"[{paper['arxiv']}](https://arxiv.org/abs/{paper['arxiv']})" if paper["arxiv"] else "–"
        state = paper.get("text", {}).get("state", "–")
        unstated = len({key for key, row in rows if is_open(row)})
        yield row_of([link(name), arxiv, state, code(*paper["own"]), len(differ), unstated, commands])


def evaluations() -> Iterator[str]:
    """A line per paper: how it evaluates, and where it says so."""
    for name, paper in papers().items():
        rows = [paper["values"].get(key, {}) for key in EVALUATION]
        if not all(map(is_open, rows)):
            values = ["" if is_open(row) else cell(wanted(row, "paper")) for row in rows]
            places = dict.fromkeys(place(row) for row in rows if not is_open(row))
            yield row_of([link(name), *values, "; ".join(places)])


def page() -> str:
    """The whole page."""
    here = settings("ta_grpo", "paper")
    once = [
        row_of([f"`{key}`", value, ", ".join(map(heading, names))])
        for (key, value), names in said_once().items()
    ]
    lines = [INTRODUCTION]
    lines += table("paper | arXiv | text | experiments | differ | open | figures and tables", overview())
    lines += [ALIKE.format(here=", ".join(f"{title} {here[key]}" for key, title in EVALUATION.items()))]
    lines += table(f"paper | {' | '.join(EVALUATION.values())} | from", evaluations())
    lines += [PROTOCOLS, *table("setting | here | left open by", once), EXPERIMENTS]
    for name, paper in papers().items():
        lines += section(name, paper)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
