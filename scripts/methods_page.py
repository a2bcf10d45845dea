"""Write docs/methods.md, the index of methods; `make docs` also writes a page for each method into the site.

    python scripts/methods_page.py

Both come from the tables of `tagrpo.settings.methods`, what each paper ran, and from the composed settings, what runs
here. A difference between the two without a reason, in the value's row or in `SHARED`, is an error, and so is a reason
for a difference that does not exist.
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
PAPERS += ["exgrpo", "grpo_lead", "max_rl", "negative_reinforcement", "pkpo", "rs_grpo", "ngrpo", "seed_grpo"]
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

`tagrpo-train experiment=dapo` trains with DAPO. This page lists all methods. `make docs` builds a site with a page for
each method: its objective, its commands for the figures and tables of the paper, and every setting that differs from
the paper, with the reason.

## Whose settings

By default a method runs with the settings of its paper. A value that the paper does not state is taken from the authors'
code, or else chosen by us. On a CPU (`scale=demo`, the default), only the loss, the schedule, the mini-batches and the
rewards are the paper's; its batch size, learning rate and lengths need `scale=paper`.

`recipe=authors` takes the value in the authors' code where it differs from the paper. `recipe=common` gives all methods
the settings of TA-GRPO, so that two methods differ only in what defines them. Compare methods with `recipe=common`. Its
settings are not tuned for the other methods, which may favour TA-GRPO; for a fair comparison, also choose a learning
rate for each method.

```bash
tagrpo-diff "experiment=dapo" "experiment=dapo recipe=common"     # what a recipe changes
```

The values that papers state, each with its place in the paper, are in `configs/papers/<paper>.yaml` and
`src/contrib/<method>/paper.yaml`. These files document values; no run reads them. A test compares them with the
settings and fails if the two differ without a recorded reason.

## The same for all

GRPO (`experiment=grpo`) samples G responses to each question, normalises their rewards by mean and standard deviation,
computes the probability of each response under the prompt that it was sampled from, and clips the probability ratio of
each token. The last column of the second table says what each of the other methods does differently.

At `scale=paper`, all methods are evaluated as TA-GRPO's authors do: {samples} responses to each question, at temperature
{temperature}, with top-p {top_p}, and of at most {tokens} tokens. `protocol=ta_grpo`, `protocol=pass_at_k` and
`protocol=prompt_augmentation` evaluate as those papers do.

For each setting below, {many} or more papers do not state a value. At `scale=paper`, the methods of these papers have the
value in the table. `advantage.unbiased` divides by n − 1 in the standard deviation of rewards; the glossary, which
`make docs` writes, explains every setting.
"""
LIST = """
## The methods

A row has all experiments of a paper, also its baselines and ablations; `tagrpo-train --help experiment` says what each
is. The last column completes the sentence "Compared with GRPO, the method …". "(second-hand)" means that we did not have
the full text of the paper, but read other accounts of it, or its authors' code.
"""
CLOSING = """
`python scripts/methods_page.py` writes this page.
"""
EXPERIMENTS = """
Each question is asked in 1 + N prompts, and each prompt gets G responses. Rewards are normalised over the pool: a prompt,
a question with its rephrasings, or the batch. The anchor is the prompt under which the probability of a response is
computed: its own prompt or the original. With `recipe=common` the keys in the last column differ from `experiment=grpo`,
and no others. Gains are in points of pass@32 over the policy that training began with ([results](../results.md)).
"""


@cache
def settings(experiment: str, recipe: str, scale: str = "paper") -> dict[str, Any]:
    """The resolved settings of an experiment."""
    return resolved([f"experiment={experiment}", f"recipe={recipe}", f"scale={scale}"])


@cache
def papers() -> dict[str, dict[str, Any]]:
    """Return name → content of the paper's table, in the order of the page.

    Raises:
        ValueError: if a table does not say what its method does.
    """
    tables = methods.tables()
    listed = [name for name in PAPERS if name in tables]
    others = [name for name in tables if name not in PAPERS]
    found = {}
    for name in [*listed, *others]:
        found[name] = {"values": {}} | methods.read_paper(tables[name])
        if "objective" not in found[name] or {"does", "why"} - set(found[name].get("idea", {})):
            raise ValueError(
                f"Expected `idea` with `does` and `why`, and `objective`, in {tables[name]}. Write them as in the "
                "table of another method: the pages of methods are made of them."
            )
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


def table(titles: str, lines: Iterator[str] | Sequence[str]) -> str:
    """Return a table with titles, as in "a | b"; empty without lines."""
    kept = list(lines)
    return "\n".join([f"| {titles} |", f"|{'---|' * (titles.count('|') + 1)}", *kept]) if kept else ""


def folded(summary: str, lines: Sequence[str]) -> str:
    """Return lines under a summary that opens them; empty without lines."""
    if not lines:
        return ""
    return "\n".join(["<details markdown>", f"<summary>{summary}</summary>", "", *lines, "", "</details>"])


def code(*names: str) -> str:
    """Names as code, with commas between them."""
    return ", ".join(f"`{name}`" for name in names)


def heading(name: str) -> str:
    """Name of a paper on the page."""
    return next(iter(papers()[name].get("names") or []), papers()[name]["title"])


def folder(name: str) -> str:
    """Return the folder of a method, or the table of a paper of the core, from the root of the repository."""
    table = methods.tables()[name]
    return f"configs/papers/{name}.yaml" if table.stem == name else f"src/contrib/{name}"


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


def compared(name: str, paper: dict[str, Any]) -> list[str]:
    """Lines of the settings that differ from the paper's or are open.

    Left out is what `evaluation` and `said_once` have.

    Raises:
        ValueError: see `departures`; or a reason stands for no difference.
    """
    differing: dict[tuple[str, ...], list[str]] = {}
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
    rows = [item for experiment in paper["own"] for item in table_of(paper, experiment).items()]
    if unused := {(recipe, key) for key, row in rows for recipe in row.get("because", {})} - used:
        raise ValueError(
            f"The file of {name} gives reasons for what does not differ: {sorted(unused)}. Delete them."
        )

    lines = []
    for key, *rest in sorted(differing):
        who = differing[key, *rest]
        whose = f" of {code(*who)}" if len(who) < len(paper["own"]) else ""
        lines.append(row_of([f"`{key}`{whose}", *rest]))
    return lines


def page(name: str) -> str:
    """Return the page of a method, `methods/<name>.md` of the site.

    Raises:
        ValueError: see `compared`.
    """
    paper = papers()[name]
    parts = [f"# {heading(name)}", *origin(name, paper)]
    parts += [f"Compared with GRPO, the method {paper['idea']['does']}. {paper['idea']['why']}"]
    parts += ["## The objective", paper["objective"], "## Run it", *commands(paper)]
    parts += [
        table("experiment | method | N | G | pool | anchor | gain in pass@32 | keys", experiments(paper))
    ]
    parts += [EXPERIMENTS, *departed(name, paper), *figures(paper), *beside(paper)]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def origin(name: str, paper: dict[str, Any]) -> Iterator[str]:
    """Yield the paper, the text of it that was read, its authors' code, and the place of the method here."""
    if paper["arxiv"]:
        version = f" {paper['version']}" if paper["version"] else ""
        said = (
            f"*{paper['title']}*, [arXiv {paper['arxiv']}](https://arxiv.org/abs/{paper['arxiv']}){version}."
        )
        if "text" in paper:
            said += f" Read for this page: {paper['text']['what']}."
        yield said + (f" Authors' code: <{paper['code']}>." if paper["code"] else "")
    yield f"In the repository: `{folder(name)}`."


def commands(paper: dict[str, Any]) -> Iterator[str]:
    """Yield the first command of each experiment."""
    yield "\n".join(["```bash", *(f"tagrpo-train experiment={name}" for name in paper["own"]), "```"])


def departed(name: str, paper: dict[str, Any]) -> Iterator[str]:
    """Yield what differs from the paper: in words, setting by setting, and in the evaluation."""
    differing = compared(name, paper)
    if differing or "differs" in paper:
        yield "## What differs from the paper"
    yield "\n".join(f"- {line}" for line in paper.get("differs", []))
    yield table("setting | paper | authors' code | here, `scale=paper` | why", differing)
    if left := sorted({key for (key, _), names in said_once().items() if name in names}):
        yield f"The paper also leaves open: {code(*left)}. [The index](../methods.md#the-same-for-all) has the values here."
    if said := evaluation(paper):
        yield f"The paper itself evaluates with {said}."


def figures(paper: dict[str, Any]) -> Iterator[str]:
    """Yield the commands for the figures and tables of the paper."""
    lines = [
        row_of([of["place"], code(*filter(None, [of["command"]])), of["how"], of["because"]])
        for of in paper.get("reproduces", [])
    ]
    if lines:
        yield "## Figures and tables of the paper"
        yield (
            "A command is *approximate* if something had to be chosen that the paper does not state, or that is not here."
        )
    yield table("of the paper | command | how | because", lines)


def beside(paper: dict[str, Any]) -> Iterator[str]:
    """Yield what no setting expresses, and the notes on the paper, each under a summary that opens them."""
    lines = []
    for entry in paper.get("not_keys", []):
        source = f" ({entry['source']})" if entry.get("source") else ""
        lines.append(f"- {entry['what']}{source}. Here: {entry['ours']}.")
    yield folded(f"What no setting expresses: {len(lines)}", lines)
    yield folded("Notes on the paper", [f"- {note}" for note in paper.get("notes", [])])


def evaluation(paper: dict[str, Any]) -> str:
    """Return how a paper evaluates, and where it says so; empty if it does not say."""
    said = []
    for key, title in EVALUATION.items():
        row = paper["values"].get(key, {})
        if not is_open(row):
            said.append(f"{title} {cell(wanted(row, 'paper'))} ({place(row)})")
    return ", ".join(said)


def rows() -> Iterator[str]:
    """Yield a line of the index for each paper or method."""
    for name, paper in papers().items():
        arxiv = f"[{paper['arxiv']}](https://arxiv.org/abs/{paper['arxiv']})" if paper["arxiv"] else "none"
        does = paper["idea"]["does"]
        if paper.get("text", {}).get("state") == "second-hand":
            does += " (second-hand)"
        yield row_of([f"[{heading(name)}](../{folder(name)})", arxiv, code(*paper["own"]), does])


def index() -> str:
    """Return docs/methods.md."""
    here = settings("ta_grpo", "paper")
    shared = {title.replace("-", "_"): here[key] for key, title in EVALUATION.items()}
    parts = [INTRODUCTION.format(**shared, many=MANY)]
    parts += [table("setting | value", [row_of([f"`{key}`", value]) for key, value in said_once()])]
    parts += [LIST, table("name | arXiv | `experiment=` | the method …", rows()), CLOSING]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def write(directory: Path) -> None:
    """Write the pages of all methods into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in papers():
        (directory / f"{name}.md").write_text(page(name))


if __name__ == "__main__":
    for name in papers():
        page(name)  # raises if settings differ from the paper without a reason
    PAGE.write_text(index())
