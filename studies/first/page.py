"""The page of the study: one verdict per claim, what explains them, every run. Written from the digest alone.

python -m studies.first.page                              # writes the page and its figures from the digest
python -m studies.first.page --runs runs/study            # reads the runs and writes their digest first
python -m studies.first.page --check runs/again/seed0     # compares a repeated run with the digest
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers.utils import logging

from tagrpo.analysis.sections import table
from tagrpo.analysis.statistics import Estimate
from tagrpo.files import write_text

from . import explanations
from .claims import CLAIMS, Claim, Finding, findings_of, together
from .digest import digest
from .explanations import Regimes
from .figures import CAPTIONS, draw
from .regimes import load, ordered, write
from .rerun import first_difference

ROOT = Path(__file__).resolve().parents[2]
DIGEST, PAGE = ROOT / "studies" / "first" / "digest.json", ROOT / "docs" / "study.md"
ORDER = (
    "base", "grpo", "grpo_matched", "exposure", "ta_grpo_star", "ta_grpo_v1", "ta_grpo", "ta_grpo_corrected",
    "pass_at_k", "pass_at_k_then_1", "pass_at_k_pooled", "prompt_augmentation",
)  # fmt: skip

INTRODUCTION = """\
# The claims, tested

Each claim is a paired difference that was written down in `studies/first/claims.py` before the runs, together with the
smallest effect that would count as one. The methods differ only in the settings that define them; none was tuned.
Everything below is generated from a digest of the runs' files; `studies/first/README.md` says how to run it all again.
"""
READING = """\
A claim **reproduces** when every one of its differences has the claimed sign at the 5 % level, after Holm's correction
over the whole study. It **does not reproduce** when one of them has the opposite sign at that level, or when its 95 %
interval excludes an effect of the smallest size. Otherwise it is undecided.
"""
DETAILS = """\
Differences with 95 % t-intervals over questions (or iterations) and seeds. The p-values are corrected for the number of
differences, the intervals are not.
"""
TASK_LIMITS = """\
- This is a tiny policy on generated word problems: what holds here need not hold for language models, nor the reverse.
  `docs/study_gpu.md` has the same study for Qwen3-1.7B on MATH. Each seed has a starter policy of its own.
- In `mixed`, originals and rephrasings are told in the same phrasings; in `hard`, originals are told in rare phrasings
  and rephrasings in common ones. Rephrasings of real questions lie somewhere between the two, or elsewhere.
"""
LIMITS = """\
- Methods are compared after equally many iterations, not after equally many responses or equal time; see *Every run*.
- Noise between seeds is measured from few of them; the t-intervals allow for that.
- Gradients at the start are measured on one batch per seed.
"""


def page(content: Mapping[str, Any], claims: Sequence[Claim] = CLAIMS, figures: str = "study") -> str:
    """The page in Markdown.

    Args:
        content: The digest.
        claims: What it gives verdicts on.
        figures: Folder of the figures, relative to the page.
    """
    regimes = ordered(content, ORDER)
    findings = findings_of(regimes, claims)
    parts = {
        "Verdicts": [*_summary(claims, findings, list(regimes)), "", READING],
        "The differences": [DETAILS, *_details(claims, findings)],
        "What each step adds": [*explanations.steps(regimes), "", *_figure("steps", figures)],
        "Questions without gradient": _figure("zero_gradient", figures),
        "Which way rephrasings push": explanations.gradients(regimes),
        "How much their responses weigh": explanations.weights(regimes),
        "Training": [*explanations.training(regimes), "", *_figure("entropy", figures)],
        "Pass@k": [*_pass_tables(regimes), *_figure("gains", figures)],
        "Limits": [(TASK_LIMITS if set(regimes) <= {"mixed", "hard"} else "") + LIMITS],
        "Every run": [*_runs(regimes), "", *_unfinished(content), "", *_same(regimes), _versions(content)],
    }
    sections = ["\n".join([f"## {title}", "", *lines]).rstrip() for title, lines in parts.items()]
    return "\n\n".join([INTRODUCTION.rstrip(), *sections]) + "\n"


def _figure(name: str, folder: str) -> list[str]:
    return [f"![{CAPTIONS[name]}]({folder}/{name}.png)", "", CAPTIONS[name]]


def _summary(claims: Sequence[Claim], findings: Sequence[Sequence[Finding]], regimes: Sequence[str]) -> Iterator[str]:
    rows = []
    for claim, found in zip(claims, findings, strict=True):
        verdicts = [together([f for f in found if f.regime == regime]) for regime in regimes]
        rows.append([claim.statement, claim.source, *(f"**{v}**" if "reproduce" in v else v for v in verdicts)])
    yield from table(["claim", "source", *regimes], rows)


def _details(claims: Sequence[Claim], findings: Sequence[Sequence[Finding]]) -> Iterator[str]:
    for claim, found in zip(claims, findings, strict=True):
        smallest = f"{100 * claim.smallest:g} points" if claim.in_points else f"{claim.smallest:g}"
        yield f"**{claim.statement}** Smallest effect: {smallest}."
        yield ""
        for f in found:
            p = "p < 0.001" if f.p_value < 0.001 else f"p = {f.p_value:.3f}"
            shown = _shown(f.difference.estimate, claim.in_points)
            yield f"- {f.regime}: {f.label}: {shown} ({p}): {f.verdict}"
        yield ""


def _shown(value: Estimate, in_points: bool) -> str:
    if in_points:
        return f"{value.signed} points"
    return f"{value.value:+.4f} [{value.low:+.4f}, {value.high:+.4f}]".replace("-", "−")


def _pass_tables(regimes: Regimes) -> Iterator[str]:
    yield "Means over seeds in percent, with 95 % intervals by bootstrap over questions and seeds."
    for name, regime in regimes.items():
        yield from ("", f"**{name}**", "", *explanations.pass_table(regime))
    yield ""


def _runs(regimes: Regimes) -> Iterator[str]:
    yield (
        "A command, given another `hydra.run.dir`, repeats its run; `python -m studies.first.page --check <that "
        "folder>` then compares it with the digest, down to the last bit of the trained weights."
    )
    yield ""
    rows = []
    for name, regime in regimes.items():
        for run in regime.runs:
            ledger = run["ledger"]
            numbers = [f"{ledger['rollouts']:,}", f"{ledger['updates']:,}", f"{run['seconds']:,.0f}"]
            rows.append(
                [name, run["method"], str(run["seed"]), str(run["starts"] or "–"), *numbers, f"`{run['command']}`"]
            )
    header = ["regime", "method", "seed", "starts", "responses", "optimizer steps", "seconds", "command"]
    yield from table(header, rows)


def _unfinished(content: Mapping[str, Any]) -> Iterator[str]:
    if not content["unfinished"]:
        yield "Every run that was started has finished; *starts* says how often it was started (–: not recorded)."
        return
    yield "**These runs were started but did not finish; they are in none of the figures above:**"
    yield ""
    rows = [[run["place"], str(run["starts"] or "–"), f"`{run['command']}`"] for run in content["unfinished"]]
    yield from table(["run", "starts", "command"], rows)


def _same(regimes: Regimes) -> Iterator[str]:
    """Name the methods whose trained weights are equal to the bit: they are the same settings under two names."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for regime in regimes.values():
        for method in regime.methods:
            weights = tuple((run["seed"], run["weights"]) for run in regime.of(method))
            if all(fingerprint for _, fingerprint in weights):
                groups.setdefault(weights, []).append(method)
    for names in dict.fromkeys(tuple(names) for names in groups.values() if len(names) > 1):
        yield f"{' and '.join(names)} are one method under two names: their trained weights are equal to the last bit."
        yield ""


def _versions(content: Mapping[str, Any]) -> str:
    return f"Versions: {', '.join(f'{name} {version}' for name, version in sorted(content['versions'].items()))}."


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page and its figures, or compare a run with the digest; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.first.page", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, help="folder of the regimes; its digest is written first")
    parser.add_argument("--digest", type=Path, default=DIGEST, help="the digest to read, or to write with --runs")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to write; its figures go to a folder beside")
    parser.add_argument("--check", type=Path, metavar="RUN", help="compare this run with the digest, write nothing")
    parser.add_argument("--without-gradients", action="store_true", help="load no policies; for large ones")
    chosen = parser.parse_args(arguments)
    if chosen.check:
        difference = first_difference(chosen.check, load(chosen.digest))
        print(f"{chosen.check}: {difference or 'equal to the digest, bit for bit'}")
        return int(difference is not None)
    if chosen.runs:
        logging.disable_progress_bar()
        write(digest(chosen.runs, gradients=not chosen.without_gradients), chosen.digest)
    content = load(chosen.digest)
    figures = chosen.page.with_suffix("")
    draw(ordered(content, ORDER), figures)
    write_text(chosen.page, page(content, figures=figures.name))
    print(chosen.page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
