"""The page of the study, written from its digests alone.

    python -m studies.second.page                            # docs/study.md
    python -m studies.second.page gpu docs/study_math.md     # the claims of `factors`, on the runs of another grid

First what a reader should believe, then a verdict for every claim, then the differences behind them, how often the
procedure errs, and every run with its command.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from tagrpo.analysis.sections import table
from tagrpo.analysis.statistics import Estimate
from tagrpo.files import write_json, write_text

from .claims import GROUPS, Claim
from .digest import CHANGES, FOLDER, read
from .errors import errors_section, hints, kept_errors, kind_of
from .figures import draw_courses, draw_effects
from .plan import PLAN
from .tables import Setting, experiment_of, settings_of
from .verdicts import OVERALL, Finding, Tables, Verdict, findings_of, together

PAGE = Path(__file__).resolve().parents[2] / "docs" / "study.md"
SUMMARY = Path(__file__).parent / "summary.md"
ERRORS = FOLDER / "errors.json"
VERDICTS_FILE = FOLDER / "verdicts.json"
"""What `outcomes` returns, for docs/methods.md."""
SHOWN = (1, 8, 32)
"""k of the means in the table of runs, over the questions of all splits."""
REACH = 100
"""Samples within whose reach a question counts as solved, in that table."""

TITLE = "# The claims of the papers, tested"
INTRODUCTION = """\
Every claim was written down in `studies/second/claims.py` before its runs, with the smallest effect that counts as one,
and so was what would change our mind: it **reproduces** when the absence of an effect is rejected, and is **refuted**
when an effect of the smallest size is; else it is undecided. Both tests are corrected alike, over all claims, so that
in 95 of 100 such studies no verdict should be false; [a simulation](#how-often-the-procedure-errs) says which verdicts
keep that. `studies/second/README.md` says how to run it again.
"""
VERDICTS = """\
One verdict over all settings, with the means of its differences and the smallest effect in brackets, and one for each
setting: a task in one of its regimes. Fractions are shown in points. A dash is a setting in which the claim's quantity
was not measured; verdicts in brackets are hints alone, of a kind that [errs too often](#how-often-the-procedure-errs).
"""
EFFECTS = """\
![Every difference over all settings]({folder}/effects.png)

Every difference over all settings with its 95 % interval, not corrected; numbers are those of the claims above.
"""
COURSES = """\
![Courses of training]({folder}/courses.png)

Pass@1 and pass@32 over the questions of all splits, means over seeds. `grpo_long` is GRPO for four times as long.
"""
DETAILS = """\
Means over seeds and questions with 95 % t-intervals, which are not corrected; p-values are: p₊ rejects that there is no
effect, p₋ that there is one of the smallest size (for a claim that something is *little*: that it is not, and that it
is). Power over all settings is what the pilot's noise promised before the runs: how often a claim would reproduce if
all effects were twice the smallest, and be refuted if there were none (the other way round for *little*).
"""
LIMITS = """\
- Policies of half a million parameters on generated tasks: what holds here need not hold for language models, nor the
  reverse. `docs/study_gpu.md` has the same claims for Qwen3-1.7B on MATH, not run yet.
- The phrasings of these tasks differ in difficulty because they were made so; those of real questions may not.
- Training ends after two epochs, like TA-GRPO's, and not where nothing rises any more: `grpo_long` shows what four
  times as many updates of GRPO still change.
- `arithmetic` is tested by 512 responses to each question; the other tasks exactly. Responses are sampled at
  temperature 1 everywhere.
- Learning rate, batch and length were chosen for `grpo_matched`, on other seeds, and are the same for all methods.
- Seconds are those of sampling, verdicts, updates and weight sync, without validation and diagnostics, of two runs at a
  time on a machine that at times did other work. Runs became a fifth faster on the way, by changes that leave their
  bits as they were: those of `factors` from some of seed 4 on, and all of later grids.
"""


def digests() -> dict[str, Path]:
    """Grid → its digest, for those that have run."""
    return {name: path for name in GROUPS if (path := FOLDER / f"{name}.jsonl.gz").exists()}


def claims_of(entries: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[tuple[Claim, Tables]]:
    """All claims with their tables, in the order of the page."""
    settings = {name: settings_of(of_grid) for name, of_grid in entries.items()}
    return [(claim, claim.tables(settings[name])) for name in settings for claim in GROUPS[name]]


def outcomes(entries: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """For each claim its statement, its source, the experiments that it speaks of, and its verdict over all settings.

    It speaks of those of the methods from which others are subtracted.
    """
    claims = claims_of(entries)
    grids = [grid for grid in entries for _ in GROUPS[grid]]
    found = []
    for grid, (claim, _), findings in zip(grids, claims, findings_of(list(claims)), strict=True):
        overall = [finding for finding in findings if finding.setting == OVERALL]
        methods = {finding.label.rpartition(", ")[2].partition(" − ")[0] for finding in overall}
        of = dict.fromkeys(experiment_of(run["command"]) for run in entries[grid] if run["method"] in methods)
        if overall:
            told = {"statement": claim.statement, "source": claim.source, "experiments": list(of)}
            found.append(told | {"verdict": together(overall)})
    return found


def page(
    entries: Mapping[str, Sequence[Mapping[str, Any]]],
    summary: str,
    errors: Mapping[str, Any],
    plan: Sequence[Mapping[str, Any]],
    folder: str = PAGE.stem,
    limits: str = LIMITS,
) -> str:
    """The page in Markdown.

    Args:
        entries: Grid → its digest.
        summary: What a reader should believe.
        errors: As `errors.simulated_errors` returns them.
        plan: As `plan.powers` returns it.
        folder: Of the pictures, relative to the page.
        limits: What the runs cannot tell.
    """
    claims = claims_of(entries)
    findings = findings_of(list(claims))
    power = {(entry["grid"], entry["statement"]): entry for entry in plan}
    of_claims = [power.get((name, claim.statement), {}) for name in entries for claim in GROUPS[name]]
    names = list(dict.fromkeys(f.setting for found in findings for f in found if f.setting != OVERALL))
    parts = {
        "Verdicts": [VERDICTS, *_verdicts(claims, findings, names, hints(errors)), "", EFFECTS.format(folder=folder)],
        "Training": [COURSES.format(folder=folder)],
        "The differences": [DETAILS, *_details(claims, findings, of_claims)],
        "How often the procedure errs": errors_section(errors),
        **({"Limits": [limits]} if limits else {}),
        "Every run": [*_runs(entries), "", *_provenance(entries)],
    }
    sections = ["\n".join([f"## {title}", "", *lines]).rstrip() for title, lines in parts.items()]
    return "\n\n".join(filter(None, [TITLE, summary.strip(), INTRODUCTION.rstrip(), *sections])) + "\n"


def _verdicts(
    claims: Sequence[tuple[Claim, Tables]],
    findings: Sequence[Sequence[Finding]],
    names: Sequence[str],
    weak: Sequence[str],
) -> Iterator[str]:
    count: Counter[str] = Counter()
    rows = []
    for number, ((claim, tables), found) in enumerate(zip(claims, findings, strict=True), start=1):
        by_setting = {name: [f for f in found if f.setting == name] for name in (OVERALL, *names)}
        overall, *verdicts = (_verdict(tables, of_setting, weak) for of_setting in by_setting.values())
        count[overall] += 1
        told = [claim.statement, claim.source, _means(claim, by_setting[OVERALL]), f"**{overall}**"]
        rows.append([str(number), *told, *verdicts])
    yield "Over all settings: " + ", ".join(f"{verdict} {count[verdict]}" for verdict in get_args(Verdict)) + "."
    yield ""
    yield from table(["", "claim", "source", "means (smallest)", "over all", *names], rows)


def _verdict(tables: Tables, findings: Sequence[Finding], weak: Sequence[str]) -> str:
    if not findings:
        return "–"
    verdict = together(findings)
    is_hint = verdict != "undecided" and any(kind_of(finding, tables) in weak for finding in findings)
    return f"({verdict})" if is_hint else verdict


def _means(claim: Claim, overall: Sequence[Finding]) -> str:
    means = ", ".join(_number(finding.difference.estimate.value, claim.in_points) for finding in overall)
    smallest = f"{100 * claim.smallest:g}" if claim.in_points else f"{claim.smallest:g}"
    return f"{means} ({'−' if claim.sign < 0 else '+'}{smallest})" if overall else "–"


def _details(
    claims: Sequence[tuple[Claim, Tables]],
    findings: Sequence[Sequence[Finding]],
    powers: Sequence[Mapping[str, Any]],
) -> Iterator[str]:
    for (claim, _), found, power in zip(claims, findings, powers, strict=True):
        smallest = f"{100 * claim.smallest:g} points" if claim.in_points else f"{claim.smallest:g}"
        yield (
            f"**{claim.statement}** ({claim.source}) Smallest effect: {smallest}, {'−' if claim.sign < 0 else '+'}. "
            f"Power: {_power(power, 'reproduces')} to reproduce, {_power(power, 'refuted')} to be refuted."
        )
        yield ""
        rows = [
            [
                f.label,
                f.setting,
                _shown(f.difference.estimate, claim.in_points),
                _p(f.p_reproduces),
                _p(f.p_refuted),
                f.verdict,
            ]
            for f in found
        ]
        yield from table(["difference", "setting", "mean", "p₊", "p₋", "verdict"], rows)
        yield ""


def _power(power: Mapping[str, Any], verdict: Verdict) -> str:
    rate = power.get(verdict, {}).get(OVERALL)
    return "unknown" if rate is None else f"{100 * rate:.0f} %"


def _shown(value: Estimate, in_points: bool) -> str:
    mean, low, high = (_number(number, in_points) for number in (value.value, value.low, value.high))
    return f"{mean} [{low}, {high}]"


def _number(number: float, in_points: bool) -> str:
    return (f"{100 * number:+.1f}" if in_points else f"{number:+.4f}").replace("-", "−")


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _runs(entries: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    yield (
        "Runs that differ in their seed alone are one row; pass@k in percent, and so are the shares of test questions "
        f"that training brought within reach of {REACH} samples (gained) and out of it (lost), where success is exact. "
        "`python -m studies.second.rerun factors countdown/easy/ta_grpo/seed3` repeats one and compares it with the "
        "digest, to the bit of its weights."
    )
    yield ""
    rows = []
    for grid, of_grid in entries.items():
        for setting, runs in settings_of(of_grid).items():
            rows += [[grid, setting, method, *_totals(runs, method)] for method in runs.methods]
    header = ["grid", "setting", "method", "seeds", *(f"pass@{k}" for k in SHOWN), "gained", "lost", "starts"]
    yield from table([*header, "responses", "updates", "seconds", "command of the first"], rows)


def _provenance(entries: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    took = [run["took"] for of_grid in entries.values() for run in of_grid]
    yield f"All {len(took):,} runs took {sum(took) / 3600:.1f} hours of one core, two of them at a time."
    yield ""
    found = Counter(
        ", ".join(f"{name.rpartition('/')[2]} {value}" for name, value in run["provenance"].items())
        for of_grid in entries.values()
        for run in of_grid
    )
    yield from (f"- {count:,} runs: {line}" for line, count in found.most_common())


def _totals(setting: Setting, method: str) -> list[str]:
    runs = setting.of(method)
    means = [sum(run["ledger"][name] for run in runs) / len(runs) for name in ("rollouts", "updates")]
    seconds = sum(run["seconds"] for run in runs) / len(runs)
    starts = sum(run["starts"] for run in runs)
    passes = [f"{100 * setting.pass_at_k(method, k).to_numpy().mean():.1f}" if _has(runs, k) else "–" for k in SHOWN]
    support = [_support(setting, method, change) for change in CHANGES]
    numbers = [f"{len(runs)}", *passes, *support, f"{starts}", *(f"{mean:,.0f}" for mean in means), f"{seconds:,.0f}"]
    return [*numbers, f"`{runs[0]['command']}`"]


def _support(setting: Setting, method: str, change: str) -> str:
    try:
        return f"{100 * setting.support(method, change, REACH).to_numpy().mean():.1f}"
    except KeyError:
        return "–"


def _has(runs: Sequence[Mapping[str, Any]], k: int) -> bool:
    return all(not run["n"] or run["n"] >= k for run in runs)


def planned() -> list[dict[str, Any]]:
    """The power of every claim, from the frozen plan."""
    found: list[dict[str, Any]] = json.loads(PLAN.read_text())["power"]
    return found


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grid", nargs="?", help="whose runs the claims of `factors` are tested on; none: the study")
    parser.add_argument("page", nargs="?", type=Path, help="the page of that grid")
    chosen = parser.parse_args()
    if chosen.grid and not chosen.page:
        parser.error(f"Expected the page to write after {chosen.grid}, such as docs/study_math.md.")
    target = chosen.page or PAGE
    paths = {"factors": FOLDER / f"{chosen.grid}.jsonl.gz"} if chosen.grid else digests()
    entries = {name: read(path) for name, path in paths.items()}
    claims = claims_of(entries)
    kept = FOLDER / f"errors_{chosen.grid}.json" if chosen.grid else ERRORS
    errors = kept_errors(list(claims), list(paths.values()), kept)
    if chosen.grid:
        text = page(entries, "", errors, [], target.stem, "")
    else:
        text = page(entries, SUMMARY.read_text(encoding="utf-8"), errors, planned())
        write_json(VERDICTS_FILE, outcomes(entries))
    write_text(target, text)
    pictures = target.with_suffix("")
    draw_effects([claim for claim, _ in claims], findings_of(list(claims)), pictures / "effects.png")
    draw_courses(entries["factors"], pictures / "courses.png")
    print(target)


if __name__ == "__main__":
    main()
