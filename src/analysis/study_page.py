"""The page of a study: one verdict per claim, what differs step by step, every run. Written from the digest alone.

`python -m tagrpo.analysis.study_page runs/study docs/study` reads the runs, keeps their digest and writes the page;
with the folder alone the page is written again from the digest that lies there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .claims import CLAIMS, STEPS, Claim, Finding, judge, together
from .sections import table
from .statistics import Estimate, difference, estimate
from .study import Cells, digest, load, ordered, write

ORDER = (
    "base", "grpo", "grpo_matched", "exposure", "ta_grpo_star", "ta_grpo_v1", "ta_grpo", "ta_grpo_corrected",
    "pass_at_k", "pass_at_k_then_1", "pass_at_k_pooled", "prompt_augmentation",
)  # fmt: skip
KS = (1, 8, 32)

INTRODUCTION = """\
# The claims, tested

Each claim below is a paired difference that was written down in `src/analysis/claims.py` before the runs, together with
the smallest effect that would count as one. All methods have the same settings but for those that define them; none was
tuned. A claim *reproduces* when every difference has the claimed sign at the 5 % level after Holm's correction over the
whole study; it *does not reproduce* when one has the other sign at that level, or when the 95 % interval excludes an
effect of the smallest size; else it is *undecided*. Intervals are 95 % t-intervals over questions (or iterations) and
seeds, not corrected.

**Limits.** A policy of half a million parameters on generated word problems: what holds here need not hold for language
models, and the reverse. Each seed has a starter policy of its own. Regimes: in `mixed` originals and rephrasings share
their phrasings; in `hard` originals are told in rare phrasings and rephrasings in common ones.
"""


def page(content: Mapping[str, Any], claims: Sequence[Claim] = CLAIMS) -> str:
    """The study in Markdown."""
    regimes = ordered(content, ORDER)
    findings = judge(regimes, claims)
    lines = [INTRODUCTION, "## Verdicts", "", *_summary(claims, findings, list(regimes)), ""]
    for claim, found in zip(claims, findings, strict=True):
        lines += [f"**{claim.statement}** ({claim.source})", "", *_details(claim, found), ""]
    for name, cells in regimes.items():
        lines += [f"## Step by step, {name}", "", *_steps(cells), "", f"## Pass@k, {name}", "", *_pass_table(cells), ""]
    lines += ["## Every run", "", *_runs(regimes), "", _versions(content)]
    return "\n".join(lines) + "\n"


def _summary(claims: Sequence[Claim], findings: Sequence[Sequence[Finding]], regimes: Sequence[str]) -> Iterator[str]:
    rows = []
    for claim, found in zip(claims, findings, strict=True):
        verdicts = [together([f for f in found if f.regime == regime]) for regime in regimes]
        rows.append([claim.statement, *(f"**{v}**" if v != "undecided" else v for v in verdicts)])
    yield from table(["claim", *regimes], rows)


def _details(claim: Claim, findings: Sequence[Finding]) -> Iterator[str]:
    for f in findings:
        p = "p < 0.001" if f.p_value < 0.001 else f"p = {f.p_value:.3f}"
        yield f"- {f.regime}: {f.label}: {_shown(f.difference.estimate, claim.in_points)} ({p}): {f.verdict}"


def _shown(value: Estimate, in_points: bool) -> str:
    if in_points:
        return f"{value.signed} points"
    return f"{value.value:+.4f} [{value.low:+.4f}, {value.high:+.4f}]".replace("-", "−")


def _steps(cells: Cells) -> Iterator[str]:
    yield "What each choice adds, in points of pass@1 and pass@32 over all test questions; p-values are not corrected."
    yield ""
    rows = []
    for what, ours, theirs in STEPS:
        if {ours, theirs} <= set(cells.methods):
            found = [difference(cells.pass_at_k(ours, k), cells.pass_at_k(theirs, k)) for k in (1, 32)]
            shown = [f"{d.estimate.signed} (p = {d.p_value:.3f})" for d in found]
            rows.append([what, f"{ours} − {theirs}", *shown])
    yield from table(["what is added", "difference", "pass@1", "pass@32"], rows)


def _pass_table(cells: Cells) -> Iterator[str]:
    splits = list(cells.cells[0]["correct"])
    yield "Means over seeds, with 95 % intervals by bootstrap over questions and seeds, in percent."
    yield ""
    rows = [
        [method, *(str(estimate(cells.pass_at_k(method, k, split))) for split in splits for k in KS)]
        for method in cells.methods
    ]
    yield from table(["method", *(f"{split} pass@{k}" for split in splits for k in KS)], rows)


def _runs(regimes: Mapping[str, Cells]) -> Iterator[str]:
    rows = []
    for name, cells in regimes.items():
        for cell in cells.cells:
            ledger = cell["ledger"]
            numbers = [
                str(cell["seed"]),
                f"{ledger['rollouts']:,}",
                f"{ledger['updates']:,}",
                f"{cell['seconds']:,.0f}",
            ]
            rows.append([name, cell["method"], *numbers, f"`{cell['command']}`"])
    yield from table(["regime", "method", "seed", "responses", "optimizer steps", "seconds", "command"], rows)


def _versions(content: Mapping[str, Any]) -> str:
    return f"Versions: {', '.join(f'{name} {version}' for name, version in sorted(content['versions'].items()))}."


def main(arguments: Sequence[str]) -> Path:
    """Write `<folder>.md` from `<folder>/digest.json`, which is made first where runs are given."""
    *runs, folder = map(Path, arguments)
    kept = folder / "digest.json"
    if runs:
        write(digest(runs[0]), kept)
    target = folder.with_suffix(".md")
    target.write_text(page(load(kept)), encoding="utf-8")
    return target


if __name__ == "__main__":
    print(main(sys.argv[1:]))
