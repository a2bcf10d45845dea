"""The page of a study: one verdict per claim, what explains them, every run. Written from the digest alone.

`python -m tagrpo.analysis.study_page runs/study docs/study` reads the runs, keeps their digest and writes the page and
its figures; with the folder alone both are written again from the digest that lies there. With `--check RUN` a cell
that was run again, anywhere, is compared with the digest instead.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers.utils import logging

from . import explanations
from .claims import CLAIMS, Claim, Finding, judge, together
from .digest import digest
from .rerun import first_difference
from .sections import table
from .statistics import Estimate
from .study import Cells, load, ordered, write
from .study_figures import CAPTIONS, draw

ORDER = (
    "base", "grpo", "grpo_matched", "exposure", "ta_grpo_star", "ta_grpo_v1", "ta_grpo", "ta_grpo_corrected",
    "pass_at_k", "pass_at_k_then_1", "pass_at_k_pooled", "prompt_augmentation",
)  # fmt: skip

INTRODUCTION = """\
# The claims, tested

Each claim is a paired difference that was written down in `src/analysis/claims.py` before the runs, together with the
smallest effect that would count as one. All methods have the same settings but for those that define them; none was
tuned. Everything below is generated from `digest.json`, which is made of the files of the runs.
"""
READING = """\
A claim **reproduces** when every difference has the claimed sign at the 5 % level after Holm's correction over the
whole study. It **does not reproduce** when one has the other sign at that level, or when its 95 % interval excludes an
effect of the smallest size. Else it is undecided.
"""
DETAILS = """\
Differences with 95 % t-intervals over questions (or iterations) and seeds, which are not corrected; p-values are.
"""
TASK_LIMITS = """\
- A tiny policy on generated word problems: what holds here need not hold for language models, and the reverse.
  `docs/study_gpu.md` has the same study for Qwen3-1.7B on MATH. Each seed has a starter policy of its own.
- In `mixed` originals and rephrasings share their phrasings; in `hard` originals are told in rare phrasings and
  rephrasings in common ones. Rephrasings of real questions lie somewhere between, or elsewhere.
"""
LIMITS = """\
- Methods are compared after as many iterations, not after as many responses or as much time; see *Every run*.
- Noise between seeds is measured, but from few of them; t-intervals allow for that.
- What is said of gradients at the start is said of one batch for each seed.
"""


def page(content: Mapping[str, Any], claims: Sequence[Claim] = CLAIMS, figures: str = "study") -> str:
    """The study in Markdown.

    Args:
        content: The digest.
        claims: To be judged.
        figures: Folder of the figures, as the page refers to it.
    """
    regimes = ordered(content, ORDER)
    findings = judge(regimes, claims)
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


def _pass_tables(regimes: Mapping[str, Cells]) -> Iterator[str]:
    yield "Means over seeds in percent, with 95 % intervals by bootstrap over questions and seeds."
    for name, cells in regimes.items():
        yield from ("", f"**{name}**", "", *explanations.pass_table(cells))
    yield ""


def _runs(regimes: Mapping[str, Cells]) -> Iterator[str]:
    yield (
        "A command, with another `hydra.run.dir`, runs its cell again; `python -m tagrpo.analysis.study_page docs/study"
        " --check <that folder>` then compares it with the digest, down to the last bit of the trained weights."
    )
    yield ""
    rows = []
    for name, cells in regimes.items():
        for cell in cells.cells:
            ledger = cell["ledger"]
            numbers = [f"{ledger['rollouts']:,}", f"{ledger['updates']:,}", f"{cell['seconds']:,.0f}"]
            rows.append(
                [name, cell["method"], str(cell["seed"]), str(cell["starts"] or "–"), *numbers, f"`{cell['command']}`"]
            )
    header = ["regime", "method", "seed", "starts", "responses", "optimizer steps", "seconds", "command"]
    yield from table(header, rows)


def _unfinished(content: Mapping[str, Any]) -> Iterator[str]:
    if not content["unfinished"]:
        yield "Every cell that was started has finished; *starts* says how often that was (–: not noted)."
        return
    yield "**Started, but not finished, and therefore in none of the figures above:**"
    yield ""
    rows = [[cell["place"], str(cell["starts"] or "–"), f"`{cell['command']}`"] for cell in content["unfinished"]]
    yield from table(["cell", "starts", "command"], rows)


def _same(regimes: Mapping[str, Cells]) -> Iterator[str]:
    """Methods whose runs came out equal to the bit: they have the same settings under two names."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for cells in regimes.values():
        for method in cells.methods:
            weights = tuple((cell["seed"], cell["weights"]) for cell in cells.of(method))
            if all(fingerprint for _, fingerprint in weights):
                groups.setdefault(weights, []).append(method)
    for names in dict.fromkeys(tuple(names) for names in groups.values() if len(names) > 1):
        yield f"{' and '.join(names)} are one method under two names: their trained weights are equal to the last bit."
        yield ""


def _versions(content: Mapping[str, Any]) -> str:
    return f"Versions: {', '.join(f'{name} {version}' for name, version in sorted(content['versions'].items()))}."


def main(arguments: Sequence[str] | None = None) -> int:
    """Write `<folder>.md` and its figures, or compare a run with `<folder>/digest.json`."""
    parser = argparse.ArgumentParser(prog="python -m tagrpo.analysis.study_page", description=__doc__)
    parser.add_argument("runs", nargs="?", type=Path, help="folder of the regimes; without it the digest is kept")
    parser.add_argument("folder", type=Path, help="folder of digest.json and of the figures; the page lies beside it")
    parser.add_argument("--check", type=Path, metavar="RUN", help="compare this run with the digest, write nothing")
    parser.add_argument("--without-gradients", action="store_true", help="load no policies; for large ones")
    chosen = parser.parse_args(arguments)
    kept = chosen.folder / "digest.json"
    if chosen.check:
        difference = first_difference(chosen.check, load(kept))
        print(f"{chosen.check}: {difference or 'equal to the digest, bit for bit'}")
        return int(difference is not None)
    if chosen.runs:
        logging.disable_progress_bar()
        write(digest(chosen.runs, gradients=not chosen.without_gradients), kept)
    content = load(kept)
    draw(ordered(content, ORDER), chosen.folder)
    target = chosen.folder.with_suffix(".md")
    target.write_text(page(content, figures=chosen.folder.name), encoding="utf-8")
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
