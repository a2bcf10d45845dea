"""An evaluation as Markdown, and its comparison with another one on the same questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..runs.files import write_json, write_text
from .comparison import Methods, finite, shared_splits
from .runs import RunFiles
from .sections import differences, lines_of, pass_at_k, table
from .statistics import Estimate


def evaluation_markdown(run: RunFiles, settings: Mapping[str, Any]) -> str:
    """Pass@k of every split and average with 95 % intervals, and the settings of the sampling."""
    ks = sorted(set.intersection(*map(set, shared_splits([run]).values())))
    rows = [[name, *_points(split["pass_at_k"], ks), *_sampled(split, ks[-1])] for name, split in run.test.items()]
    for name, group in run.groups.items():
        for key, weighed in (("pass_at_k", "average"), ("by_question", "by question")):
            size = str(group["num_questions"])
            rows.append([f"**{name} ({weighed})**", *_points(group[key], ks), "", size, "", "", ""])
    header = ["split", *(f"pass@{k}" for k in ks), f"maj@{ks[-1]}", "questions", "n", "tokens", "truncated"]
    lines = [
        f"# Evaluation of {settings.get('model', run.method)}",
        "",
        *table(header, rows),
        "",
        "In percent: means over questions with 95 % intervals by bootstrap over questions, unbiased for n responses "
        "(arXiv 2107.03374). An average gives each split the same weight, one by question each question. "
        "`tokens` is the mean length of a response, "
        "`truncated` the share of responses that the length limit ended.",
        "",
        *(f"- {name}: {value}" for name, value in {**settings, **run.provenance}.items()),
    ]
    return "\n".join(lines) + "\n"


def _points(curve: Mapping[str, Mapping[str, float]], ks: Sequence[int]) -> list[str]:
    return [str(Estimate(**curve[str(k)])) for k in ks]


def _sampled(split: Mapping[str, Any], k: int) -> list[str]:
    """Majority@k, questions, responses per question, their length, and the percentage that was cut."""
    samples = sorted(row["n"] for row in split["questions"])
    n = "–".join(dict.fromkeys(map(str, (samples[0], samples[-1]))))
    majority, length = _points(split["majority_at_k"], [k]), f"{split['length']:,.0f}"
    return [*majority, str(split["num_questions"]), n, length, f"{100 * split['truncated']:.1f} %"]


def compare_evaluations(ours: RunFiles, theirs: RunFiles, folder: Path) -> str:
    """Write paired differences with Holm's correction to `comparison.json` and `.md` in `folder`; returns the latter.

    They are those of a report: at the smallest and the largest k of every split and average that both have.

    Raises:
        ValueError: they share no split, or were evaluated on different questions of one.
    """
    name = theirs.method if theirs.method != ours.method else str(theirs.path)
    methods = Methods({name: [theirs], ours.method: [ours]})
    lines = [f"# {ours.method} against {name}", "", *lines_of(differences(methods)), *lines_of(pass_at_k(methods))]
    text = "\n".join(lines) + "\n"
    write_json(folder / "comparison.json", finite([comparison.as_dict() for comparison in methods.comparisons]))
    write_text(folder / "comparison.md", text)
    return text
