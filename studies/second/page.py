"""The page of the study, written from its digests alone.

    python -m studies.second.page                            # docs/study.md
    python -m studies.second.page gpu docs/study_math.md     # the claims of `factors`, on the runs of another grid

First what a reader should believe, then gains over not training, a word for every claim, each setting, how often the
procedure errs, and what was corrected. All differences and runs are CSV files beside the page.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template
from typing import Any, get_args

import pandas as pd

from tagrpo.analysis.sections import table
from tagrpo.analysis.statistics import Estimate
from tagrpo.runs.files import write_json, write_text

from .claims import GROUPS, Claim
from .digest import FOLDER, read
from .figures import draw_courses, draw_gains
from .tables import BASE, Setting, experiment_of, gains, settings_of
from .verdicts import (
    OVERALL,
    Finding,
    Heterogeneity,
    Tables,
    Word,
    estimate_of,
    findings_of,
    heterogeneity,
    moments_of,
    together,
)

Entries = Mapping[str, Sequence[Mapping[str, Any]]]
"""Grid → its digest."""
PAGE = Path(__file__).resolve().parents[2] / "docs" / "study.md"
SUMMARY = Path(__file__).parent / "summary.md"
TEXT = Path(__file__).parent / "page.md"
"""Texts around the tables of the page."""
STUDY_ALONE = ("Where rephrasings differ", "How often the procedure errs", "What was corrected", "Limits")
"""Sections that the runs of other grids have not."""
FROZEN_WORDS = ("reproduces", "refuted", "undecided")
FROZEN = Path(__file__).parent / "frozen.json"
"""The verdicts of the frozen procedure, as data: its code is that of the commit that it names."""
ERRORS = FOLDER / "errors.json"
"""Shares of simulated studies with a false word, as data: README.md names the commit of the simulation."""
FAMILIES = ("over all settings", "in one setting")
VERDICTS_FILE = FOLDER / "verdicts.json"
"""The result of `outcomes`, for docs/methods.md."""
STARTS = "factors"
"""The grid whose untrained policies the runs of the other grids began with."""
OTHER_STARTERS = ("prompt_augmentation",)
"""Grids that began with other policies, of which no untrained run was recorded."""
SHOWN = (1, 8, 32)
DIFFER = 0.05
"""Where settings differ at this level, not corrected, the page speaks of the settings."""
MARKS: Mapping[Word, str] = {
    "reproduces": " **R**",
    "smaller than claimed": " **S**",
    "larger than claimed": " **L**",
    "no effect": " **N**",
    "opposite": " **O**",
    "undecided": "",
}


@dataclass(frozen=True, kw_only=True)
class Result:
    """A claim with its findings."""

    number: int
    grid: str
    claim: Claim
    findings: Sequence[Finding]
    frozen: Mapping[str, str]
    """Setting → what the frozen procedure said of the claim; empty for other runs than the study's."""

    @property
    def overall(self) -> list[Finding]:
        """Over all settings, one per difference; none where its methods have not run."""
        return [finding for finding in self.findings if finding.setting == OVERALL]


def claims_of(entries: Entries) -> list[tuple[str, Claim, Tables]]:
    """All claims with their grids and their tables, in the order of the page."""
    settings = {grid: settings_of(of_grid) for grid, of_grid in entries.items()}
    return [(grid, claim, claim.tables(settings[grid])) for grid in settings for claim in GROUPS[grid]]


def results_of(
    claims: Sequence[tuple[str, Claim, Tables]], frozen: Sequence[Mapping[str, Any]] | None = None
) -> list[Result]:
    """Claims with their findings, and with what the frozen procedure said of them."""
    known = [{} for _ in claims] if frozen is None else [entry["verdicts"] for entry in frozen]
    found = zip(claims, findings_of([(claim, tables) for _, claim, tables in claims]), known, strict=True)
    return [
        Result(number=number, grid=grid, claim=claim, findings=findings, frozen=said)
        for number, ((grid, claim, _), findings, said) in enumerate(found, start=1)
    ]


def outcomes(results: Sequence[Result], entries: Entries) -> list[dict[str, Any]]:
    """For each claim that was tested: number, statement, source, experiments, word, frozen word and effect, as text.

    The experiments are those of the methods from which others are subtracted.
    """
    found = []
    for result in results:
        if result.overall:
            methods = {finding.label.rpartition(", ")[2].partition(" − ")[0] for finding in result.overall}
            runs = (run for run in entries[result.grid] if run["method"] in methods)
            found.append(
                {
                    "number": result.number,
                    "statement": result.claim.statement,
                    "source": result.claim.source,
                    "experiments": list(dict.fromkeys(experiment_of(run["command"]) for run in runs)),
                    "verdict": together([finding.word for finding in result.overall]),
                    "frozen": result.frozen.get(OVERALL, ""),
                    "effect": "; ".join(_shown(result.claim, finding.estimate) for finding in result.overall)
                    + unit_of(result.claim),
                }
            )
    return found


def unit_of(claim: Claim) -> str:
    """The unit after a number of this claim."""
    if claim.in_points:
        return " points"
    label = next(iter(claim.pairs))
    return " nats" if "entropy" in label else " (cosine)" if "distance" in label else ""


@dataclass(frozen=True, kw_only=True)
class Gain:
    """A method's gains over the untrained policy, over all settings of its grid."""

    grid: str
    method: str
    seeds: int
    of_k: Mapping[int, Estimate]
    settings: Mapping[int, Mapping[str, float]]
    """k → setting → gain."""
    heterogeneity: Heterogeneity | None


def gains_of(entries: Entries) -> list[Gain]:
    """Of every method that was trained and tested, grid by grid, from policies that were tested untrained."""
    starts = settings_of(entries[STARTS])
    found = []
    for grid, of_grid in entries.items():
        settings = settings_of(of_grid)
        names = dict.fromkeys(run["method"] for run in of_grid if grid not in OTHER_STARTERS)
        for method in (name for name in names if name != BASE and not name.startswith("questions_")):
            tables = {k: gains(settings, starts, method, k) for k in SHOWN}
            if all(tables.values()):
                single = [moments_of({name: of}) for name, of in tables[32].items()]
                found.append(
                    Gain(
                        grid=grid,
                        method=method,
                        seeds=max(len(of) for of in tables[32].values()),
                        of_k={k: estimate_of(moments_of(of)) for k, of in tables.items()},
                        settings={
                            k: {n: float(t.to_numpy().mean()) for n, t in of.items()} for k, of in tables.items()
                        },
                        heterogeneity=heterogeneity(single),
                    )
                )
    return found


def page(
    results: Sequence[Result],
    of_methods: Sequence[Gain],
    entries: Entries,
    errors: Mapping[str, Any] | None = None,
    frozen: Mapping[str, Any] | None = None,
    folder: str = PAGE.stem,
) -> str:
    """The page in Markdown.

    Args:
        results: Of all claims.
        of_methods: Gains over not training.
        entries: The digests.
        errors: Content of `ERRORS`.
        frozen: The study's verdicts by the frozen procedure. Both None: the claims on the runs of another grid.
        folder: Of the pictures and tables, relative to the page.
    """
    sections = TEXT.read_text(encoding="utf-8").split("\n## ")
    kept = [section for section in sections if frozen or not section.startswith(STUDY_ALONE)]
    names = list(dict.fromkeys(f.setting for result in results for f in result.findings if f.setting != OVERALL))
    parts = {
        "gains": _gains(of_methods, settings_of(entries[STARTS])),
        "claims": _claims(results),
        "settings": _settings(results, names),
        "mechanism": _mechanism(settings_of(entries[STARTS])),
        "errors": _errors(errors) if errors else (),
        "corrections": _corrections(results),
    }
    of_settings = [finding for result in results for finding in result.findings if finding.setting != OVERALL]
    words = {
        "summary": SUMMARY.read_text(encoding="utf-8").strip() if frozen else "",
        "folder": folder,
        "differ": f"{DIFFER:g}",
        "count": f"{len(of_settings)}",
        "runs": _runs(entries),
        **(_simulated(errors) if errors else {}),
        "date": (frozen or {}).get("date", ""),
        "commit": (frozen or {}).get("commit", ""),
    }
    return Template("\n## ".join(kept)).substitute(words, **{name: "\n".join(lines) for name, lines in parts.items()})


def _gains(of_methods: Sequence[Gain], starts: Mapping[str, Setting]) -> Iterator[str]:
    found = [[setting.pass_at_k(BASE, k).to_numpy().mean() for setting in starts.values()] for k in SHOWN]
    own = [f"0 (of {100 * sum(values) / len(values):.1f} %)" for values in found]
    rows = [[STARTS, "untrained", f"{len(starts)} × {len(next(iter(starts.values())).of(BASE))}", *own, ""]]
    for gain in of_methods:
        values = {k: gain.of_k[k].signed for k in SHOWN}
        rows.append([gain.grid, f"`{gain.method}`", f"{len(gain.settings[32])} × {gain.seeds}", *values.values()])
        rows[-1].append(_ends(gain.settings[32], gain.heterogeneity, in_points=True))
    header = ["grid", "method", "settings × seeds", *(f"pass@{k}" for k in SHOWN), "settings"]
    yield from table(header, rows)


def _ends(of_settings: Mapping[str, float], differ: Heterogeneity | None, in_points: bool) -> str:
    if differ is None:
        return "–"
    shown = f"Q = {differ.q:.1f}, p {_p(differ.p)}"
    if differ.p >= DIFFER:
        return shown
    ends = (min(of_settings, key=of_settings.__getitem__), max(of_settings, key=of_settings.__getitem__))
    return " … ".join(f"{number(of_settings[name], in_points)} `{name}`" for name in ends) + f" ({shown})"


def word_counts(results: Sequence[Result]) -> dict[str, int]:
    """Word → how many claims have it in all of their differences; `mixed`: those whose differences disagree."""
    words = Counter(together([finding.word for finding in result.overall]) for result in results if result.overall)
    found = {word: words.pop(word, 0) for word in get_args(Word)}
    return found | {"mixed": sum(words.values())}


def _claims(results: Sequence[Result]) -> Iterator[str]:
    rows = []
    for result in results:
        ends, effects = [], []
        for one in result.overall:
            values = {f.setting: f.estimate.value for f in result.findings if f.label == one.label}
            values.pop(OVERALL)
            ends.append(_ends(values, one.heterogeneity, result.claim.in_points))
            effects.append(_shown(result.claim, one.estimate) + " †" * one.outlying)
        claim = [result.claim.statement, result.claim.source, "; ".join(effects), _smallest(result.claim)]
        words = [f"**{_word(result.overall)}**", result.frozen.get(OVERALL, "–")]
        rows.append([str(result.number), *(cell or "–" for cell in claim), *words, "; ".join(ends) or "–"])
    counts = ", ".join(f"{word} {count}" for word, count in word_counts(results).items())
    yield f"Claims by word: {counts} (those whose differences have several words)."
    yield ""
    yield from table(["", "claim", "source", "effect", "δ", "word", "frozen", "settings"], rows)


def _word(overall: Sequence[Finding]) -> str:
    """With *< δ* where an effect as large as claimed is excluded."""
    return together([f.word + " < δ" * (f.word == "undecided" and f.outcome.below) for f in overall]) or "–"


def _shown(claim: Claim, value: Estimate) -> str:
    mean, low, high = (number(x, claim.in_points) for x in (value.value, value.low, value.high))
    return f"{mean} [{low}, {high}]"


def _smallest(claim: Claim) -> str:
    smallest = f"{100 * claim.smallest:g}" if claim.in_points else f"{claim.smallest:g}"
    return f"{'−' if claim.sign < 0 else '+'}{smallest}" + " (little)" * claim.little


def number(value: float, in_points: bool) -> str:
    """A signed number, a fraction in points."""
    return (f"{100 * value:+.1f}" if in_points else f"{value:+.3f}").replace("-", "−")


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"


def _settings(results: Sequence[Result], names: Sequence[str]) -> Iterator[str]:
    rows = []
    for result in results:
        for overall in result.overall:
            of_setting = {f.setting: f for f in result.findings if f.label == overall.label}
            cells = [
                number(f.estimate.value, result.claim.in_points) + MARKS[f.word] + " †" * f.outlying
                if (f := of_setting.get(name))
                else "–"
                for name in names
            ]
            rows.append([str(result.number), overall.label, _smallest(result.claim), *cells])
    yield from table(["", "difference", "δ", *names], rows)


def _mechanism(settings: Mapping[str, Setting]) -> Iterator[str]:
    rows = []
    for name, setting in settings.items():
        if {"questions_before", "ta_grpo", "grpo_matched"} <= set(setting.methods):
            asked = [float(setting.series("questions_before", f"rollout/correct_{which}").to_numpy().mean())
                     for which in ("original", "rephrasings")]  # fmt: skip
            difference = setting.pass_at_k("ta_grpo", 32) - setting.pass_at_k("grpo_matched", 32)
            rows.append([name, *(f"{100 * x:.1f}" for x in asked), estimate_of(moments_of({name: difference})).signed])
    yield from table(["setting", "originals", "rephrasings", "gain in pass@32"], rows)


def _errors(errors: Mapping[str, Any]) -> Iterator[str]:
    rates = errors["rates"]
    columns = [(family, noise) for family in FAMILIES for noise in rates]
    rows = []
    for word in next(iter(rates["normal"].values()))[FAMILIES[0]]:
        worst = (max(of[family][word] for of in rates[noise].values()) for family, noise in columns)
        rows.append([word, *(f"{100 * share:.1f}" for share in worst)])
    yield from table(["false word", *(f"{family}, {noise}" for family, noise in columns)], rows)


def _simulated(errors: Mapping[str, Any]) -> dict[str, str]:
    """Number of simulated studies, skewness of seeds, and the share of words that would be decided."""
    told = [
        " and ".join(f"{100 * share:.0f} % of {kind}" for kind, share in shares.items() if share is not None)
        + f" if {effect}"
        for effect, shares in errors["decided"].items()
    ]
    shown = {name: f"{value:.2f}" for name, value in errors["skewness"].items()} | {"rounds": f"{errors['rounds']:,}"}
    words = ", and for ".join(told)
    return shown | {"decided": f"Over all settings a true word other than *undecided* would stand for {words}."}


def _corrections(results: Sequence[Result]) -> Iterator[str]:
    pairs = Counter((result.frozen.get(OVERALL, ""), _word(result.overall)) for result in results if result.overall)
    rows = [
        [word, *(str(pairs[old, word] or "–") for old in FROZEN_WORDS)] for word in sorted({word for _, word in pairs})
    ]
    yield from table(["corrected", *(f"frozen: {old}" for old in FROZEN_WORDS)], rows)


def _runs(entries: Entries) -> str:
    runs = [run for of_grid in entries.values() for run in of_grid]
    took = sum(run["took"] for run in runs) / 3600
    return f"All {len(runs):,} runs took {took:.1f} hours of one core, two of them at a time."


def differences_csv(results: Sequence[Result]) -> str:
    """Every difference in every setting and over all, as CSV; fractions are not in points."""
    rows = [
        {"claim": result.number, "grid": result.grid, "smallest": result.claim.sign * result.claim.smallest}
        | {"little": result.claim.little, "frozen": result.frozen.get(finding.setting, "")}
        | asdict(finding)
        for result in results
        for finding in result.findings
    ]
    return pd.json_normalize(rows).drop(columns="heterogeneity").to_csv(index=False, float_format="%.6g")


def digests() -> dict[str, Path]:
    """Grid → its digest, for those that have run."""
    return {name: path for name in GROUPS if (path := FOLDER / f"{name}.jsonl.gz").exists()}


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grid", nargs="?", help="whose runs the claims of `factors` are tested on; none: the study")
    parser.add_argument("page", nargs="?", type=Path, help="the page of that grid")
    chosen = parser.parse_args()
    if chosen.grid and not chosen.page:
        parser.error(f"Expected the page to write after {chosen.grid}, such as docs/study_math.md.")
    target = chosen.page or PAGE
    paths = {STARTS: FOLDER / f"{chosen.grid}.jsonl.gz"} if chosen.grid else digests()
    frozen, errors = (None if chosen.grid else json.loads(path.read_text()) for path in (FROZEN, ERRORS))
    entries = {name: read(path) for name, path in paths.items()}
    results = results_of(claims_of(entries), frozen["claims"] if frozen else None)
    of_methods = gains_of(entries)
    folder = target.with_suffix("")
    write_text(target, page(results, of_methods, entries, errors, frozen, target.stem))
    write_text(folder / "differences.csv", differences_csv(results))
    if frozen:
        write_json(VERDICTS_FILE, outcomes(results, entries))
    draw_gains(of_methods, folder / "gains.png")
    draw_courses(entries[STARTS], folder / "courses.png")
    print(target)


if __name__ == "__main__":
    main()
