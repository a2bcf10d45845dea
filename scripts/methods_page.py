"""Makes docs/methods.md from docs/papers/*.yaml, what each paper ran, and from the configuration, what runs here.

    python scripts/methods_page.py

Every difference between the two is on the page. One that has no reason in the paper's file is an error, and so is a
reason for a difference that does not exist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tagrpo.diff import ABSENT
from tagrpo.diff import settings as resolved

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "methods.md"
PAPERS = ["ta_grpo", "pass_at_k", "prompt_augmentation", "dapo", "dr_grpo", "gspo", "gmpo", "cispo", "rloo"]
PAPERS += ["seed_grpo", "exgrpo", "grpo_lead", "max_rl", "negative_reinforcement", "pkpo", "rs_grpo", "ngrpo"]
PAPERS += ["entropy_mechanism", "high_entropy_tokens", "unlikeliness", "rl_zvp"]
PAPERS += ["overtraining_gate", "outcome_exploration", "greso", "ours"]
ELSEWHERE = ("data.evaluation_samples", "rollout.evaluation_sampling.", "data.train.")
"""Keys of the evaluation and the data, which are the same for all methods here."""
INTRODUCTION = """\
# Methods

What each paper ran, what runs here, and every difference between the two. This page is made by
`python scripts/methods_page.py` from [docs/papers](papers), which has the values of the papers with their places, and
from the configuration; a test fails where they differ without a reason.

`experiment=X` is the method with the settings of its paper: the paper's value, else that of its authors' code, else our
own. `recipe=authors` is what the authors' code ran where it differs from their paper. `recipe=common` puts all methods
on the settings of TA-GRPO, so that two methods differ in nothing but what defines them (first table).
`tagrpo-diff "experiment=X" "experiment=X recipe=common"` prints what a recipe changes.

Common to all, whatever a paper did: the evaluation (that of TA-GRPO's authors: 128 samples at temperature 0.6 and top-p
0.95; `protocol=ta_grpo`, `pass_at_k` or `prompt_augmentation` changes it), the data (`data=…`), and the verifier
(`reward=…`). With `scale=demo`, what depends on the size of the model or the task (learning rate, batch, lengths, the
number of iterations) is the demo's.

## What defines each method

Each question is asked in 1 + N prompts, each prompt gets G responses; rewards are normalised over a `pool` (a question
with its rephrasings, a prompt, or the batch), and a response is scored under the prompt that `anchor` names: its own or
the original. With `recipe=common` the last column's keys differ from `experiment=grpo`, and no other. Gains, in points
over the policy that training began with, are those of the [benchmark](benchmark.md).
"""


@cache
def settings(experiment: str, recipe: str, scale: str = "paper") -> dict[str, Any]:
    """The resolved settings of an experiment."""
    return resolved([f"experiment={experiment}", f"recipe={recipe}", f"scale={scale}"])


def papers() -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and content of every file of docs/papers, in the order of the page."""
    for name in PAPERS:
        yield name, yaml.safe_load((ROOT / "docs" / "papers" / f"{name}.yaml").read_text())


def table_of(paper: dict[str, Any], experiment: str) -> dict[str, Any]:
    """Key → what the paper ran for this experiment, without the keys of `ELSEWHERE`."""
    return {key: row for key, row in {**paper["settings"], **paper["own"][experiment]}.items()
            if not key.startswith(ELSEWHERE)}  # fmt: skip


def wanted(row: dict[str, Any], recipe: str) -> Any:
    """The value that a recipe should have, or `ABSENT` where paper and code leave it open."""
    order = ("paper", "authors") if recipe == "paper" else ("authors", "paper")
    return next((row[side] for side in order if side in row), ABSENT)


def recipes_of(name: str) -> list[str]:
    """`paper`, and `authors` where there are settings of that name."""
    return ["paper"] + ["authors"] * (ROOT / "configs" / "settings" / name / "authors.yaml").exists()


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
            if key not in (reasons := paper.get("departures", {}).get(recipe, {})):
                raise ValueError(
                    f"docs/papers/{name}.yaml has {key} = {want} for {experiment}, but recipe={recipe} has {have}. "
                    f"Change configs/settings/{name}, or give a reason under departures.{recipe}."
                )
            found[recipe, key] = reasons[key]
    return found


def cell(value: Any) -> str:
    """A value as the cell of a table."""
    return json.dumps(value) if isinstance(value, bool | None) else str(value)


def title_of(experiment: str) -> str:
    """What the first line of the experiment's file says after its command."""
    return re.split(r" {4,}", (ROOT / "configs" / "experiment" / f"{experiment}.yaml").read_text().splitlines()[1])[1]


def rows(paper: dict[str, Any]) -> Iterator[str]:
    """A line per key and value of a paper: paper, source, authors' code, here."""
    experiments = list(paper["own"])
    here = {e: settings(e, "paper") for e in experiments}
    seen: dict[tuple[str, str], list[str]] = {}
    for experiment in experiments:
        for key, row in table_of(paper, experiment).items():
            stated = f"{cell(row['paper'])} ({row['source']})" if "paper" in row else f"open: {row['open']}"
            code = f"{cell(row['authors'])} ({row['authors_source']})" if "authors" in row else ""
            ours = cell(here[experiment].get(key, ABSENT))
            line = " | ".join(text.replace("|", "\\|") for text in (stated, code, ours))
            seen.setdefault((key, line), []).append(experiment)
    for (key, line), whose in sorted(seen.items(), key=lambda item: item[0][0]):
        names = "" if len(whose) == len(experiments) else f" of {', '.join(whose)}"
        yield f"| `{key}`{names} | {line} |"


def outcomes(file: str) -> Any:
    """What the study has found, from a file beside its digests; nothing before it has been run."""
    path = ROOT / "studies" / "second" / "digest" / file
    return json.loads(path.read_text()) if path.exists() else {}


def section(name: str, paper: dict[str, Any]) -> Iterator[str]:
    """The part of the page on one paper.

    Raises:
        ValueError: see `departures`; or a reason stands for no difference.
    """
    link = f"[arXiv {paper['arxiv']}](https://arxiv.org/abs/{paper['arxiv']})" if paper["arxiv"] else ""
    version = f" {paper['version']}" if paper["version"] else ""
    code = f"; code: {paper['code']}" if paper["code"] else ""
    yield f"\n## {paper['title']}\n"
    if link:
        yield f"{link}{version}{code}\n"
    yield "Experiments: " + ", ".join(f"`{experiment}`" for experiment in paper["own"]) + "\n"
    if table := list(rows(paper)):
        yield "| setting | paper | authors' code, where it was read | here, `scale=paper` |\n|---|---|---|---|"
        yield from table
    found: dict[tuple[str, str], tuple[str, list[str]]] = {}
    for experiment in paper["own"]:
        for where, reason in departures(name, paper, experiment).items():
            found.setdefault(where, (reason, []))[1].append(experiment)
    listed = {(recipe, key) for recipe, keys in paper.get("departures", {}).items() for key in keys}
    if unused := listed - set(found):
        raise ValueError(
            f"docs/papers/{name}.yaml gives reasons for what does not differ: {sorted(unused)}. Delete them."
        )
    if found or paper.get("not_keys"):
        yield "\nDepartures, and what no setting expresses:\n"
    for (recipe, key), (reason, whose) in found.items():
        yield f"- `{key}` with `recipe={recipe}` ({', '.join(whose)}): {reason}."
    for entry in paper.get("not_keys", []):
        source = f" ({entry['source']})" if entry.get("source") else ""
        yield f"- {entry['what']}{source}. Here: {entry['ours']}."
    if paper.get("notes"):
        yield "\nNotes:\n"
        yield from (f"- {note}" for note in paper["notes"])
    if told := [told for told in outcomes("verdicts.json") if told["experiments"][0] in paper["own"]]:
        yield "\nVerdicts of the [study](study.md), over all its settings:\n"
        yield "| claim | source | experiments | verdict |\n|---|---|---|---|"
        for claim in told:
            names = ", ".join(f"`{experiment}`" for experiment in claim["experiments"])
            yield f"| {claim['statement']} | {claim['source']} | {names} | {claim['verdict']} |"


def overview() -> Iterator[str]:
    """The table of all experiments."""
    yield "| experiment | method | N | G | pool | anchor | gain in pass@32 | keys |\n|---|---|---|---|---|---|---|---|"
    gains = outcomes("gains.json")
    for _, paper in papers():
        for experiment in paper["own"]:
            keys = ", ".join(f"`{key}`" for key in paper["defines"][experiment]) or "none"
            here = settings(experiment, "common")
            shape = [here["data.num_rephrasings"], here["data.samples_per_prompt"]]
            shape += [here.get("advantage.group_by", "question"), here["policy.anchor"]]
            shape += [gains.get(experiment, "–")]
            yield f"| `{experiment}` | {title_of(experiment)} | {' | '.join(map(str, shape))} | {keys} |"


def page() -> str:
    """The whole page."""
    lines = [INTRODUCTION, *overview()]
    for name, paper in papers():
        lines += section(name, paper)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
