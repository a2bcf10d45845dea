"""The words and tables of a report, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from ..metrics.functional import break_even, cost_per_gradient
from .comparison import ZERO_GRADIENT, Methods
from .runs import Unit
from .statistics import Comparison

HEADLINE_KS = (1, 8, 32)
UNITS: Mapping[Unit, str] = {"rollouts": "responses", "tokens": "response tokens", "seconds": "seconds"}
BUDGET_NAMES = {
    "iterations": "iterations", "updates": "optimizer steps", "prompts": "prompts",
    "rollouts": "sampled responses", "tokens": "response tokens",
}  # fmt: skip


def markdown(methods: Methods, figures: Mapping[str, str]) -> str:
    """The report. `figures`: file name → caption."""
    parts = [
        f"# Comparison of {', '.join(methods.runs)}",
        "",
        *_pass_table(methods),
        "",
        "## What differs beyond noise",
        "",
        *_statements(methods),
        "",
        "## Budgets",
        "",
        *_budget_table(methods),
        "",
        *_costs(methods),
        *_settings_table(methods),
        "",
        "## Figures",
        "",
        *(line for name, caption in figures.items() for line in (f"![{caption}]({name})", "", caption, "")),
        "## To repeat a run",
        "",
        *(f"    {run.command}" for seeds in methods.runs.values() for run in seeds if run.command),
        "",
        *_versions(methods),
    ]
    return "\n".join(parts) + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = [list(header), ["---"] * len(header), *map(list, rows)]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in lines]


def _pass_table(methods: Methods) -> list[str]:
    rows = [
        [f"{split} pass@{k}", *(str(points[k]) for points in methods.curves[split].values())]
        for split, ks in methods.splits.items()
        for k in HEADLINE_KS
        if k in ks
    ]
    seeds = {method: ", ".join(str(run.seed) for run in runs) for method, runs in methods.runs.items()}
    different = set(seeds.values())
    which = "; ".join(f"{m}: {s}" for m, s in seeds.items()) if len(different) > 1 else different.pop()
    first = next(iter(methods.runs.values()))[0]
    sizes = ", ".join(f"{split} {first.test[split]['num_questions']}" for split in methods.splits)
    return [
        *table(["%", *methods.runs], rows),
        "",
        f"With 95 % intervals by bootstrap over questions and seeds. Questions: {sizes}. Seeds: {which}.",
    ]


def _statements(methods: Methods) -> Iterator[str]:
    yield (
        "Differences are paired: those of pass@k over questions and seeds, those of the questions without gradient "
        "over iterations and seeds. One counts as beyond noise when its two-sided p-value is below 5 % after Holm's "
        f"correction for all {len(methods.comparisons)} differences listed here. They are in points, with 95 % "
        "intervals that are not corrected."
    )
    if max((len(c.seeds) for c in methods.comparisons), default=0) == 1:
        yield (
            "**With one seed the noise between seeds is not measured**: what is said here of these runs may not hold "
            "for another seed."
        )
    pairs: dict[tuple[str, str], list[Comparison]] = {}
    for c in reversed(methods.comparisons):
        pairs.setdefault((c.method, c.baseline), []).insert(0, c)
    for (method, baseline), found in pairs.items():
        yield from ("", f"**{method} against {baseline}**{_ratio(methods, method, baseline)}", "")
        for verdict in ("higher", "lower", "undecided"):
            if items := [f"{_named(c.quantity)} {c.difference.signed}" for c in found if c.verdict == verdict]:
                yield f"- {verdict}: {'; '.join(items)}"


def _ratio(methods: Methods, method: str, baseline: str) -> str:
    ours, theirs = (fmean([run.ledger["rollouts"] for run in methods.runs[m]]) for m in (method, baseline))
    if not ours or not theirs:
        return ""
    same = abs(ours / theirs - 1) < 0.01
    return f" (with {'as many' if same else f'{ours / theirs:.2g} times the'} sampled responses)"


def _named(quantity: str) -> str:
    if quantity == ZERO_GRADIENT:
        return "questions without gradient"
    _, split, k = quantity.split("/")
    return f"{split} pass@{k}"


def _budget_table(methods: Methods) -> Iterator[str]:
    rows = []
    for method, seeds in methods.runs.items():
        zero = methods.zero_gradient[method]
        used = [fmean([run.ledger[name] for run in seeds]) for name in BUDGET_NAMES]
        used.append(fmean([run.wall_seconds for run in seeds]))
        share = f"{zero.to_numpy().mean():.1f}" if zero.size else "–"
        rows.append([method, str(len(seeds)), *(f"{number:,.0f}" for number in used), share])
    yield from table(["method", "seeds", *BUDGET_NAMES.values(), "seconds", "% without gradient"], rows)
    yield ""
    yield (
        "Means per seed. Seconds are those of training, on a machine that other runs may have shared. The last "
        "column is the percentage of questions whose advantages are all zero, over all of training."
    )
    trained = [run for seeds in methods.trained.values() for run in seeds]
    if len(methods.trained) > 1:
        equal = {name: len({run.ledger[name] for run in trained}) == 1 for name in BUDGET_NAMES}
        matched = [BUDGET_NAMES[name] for name, same in equal.items() if same]
        unmatched = [BUDGET_NAMES[name] for name, same in equal.items() if not same]
        yield ""
        yield f"Equal in all trained runs: {', '.join(matched) or 'nothing'}."
        yield f"Not equal: {', '.join(unmatched) or 'none'}."


def _costs(methods: Methods) -> Iterator[str]:
    """What each trained method pays for a question with a gradient, compared with the first of them."""
    series = {method: methods.zero_gradient[method] for method in methods.trained}
    zero = {method: float(table.to_numpy().mean()) for method, table in series.items() if table.size}
    if len(zero) < 2:
        return
    first = next(iter(zero))
    rows = []
    for method, share in zero.items():
        row = [method]
        for unit in UNITS:
            ours, theirs = (fmean([run.per_question(unit) for run in methods.runs[m]]) for m in (method, first))
            cost = cost_per_gradient(ours, 1, share)
            row.append(f"{cost:,.0f}" if cost >= 100 else f"{cost:.3g}")
            if unit != "seconds" and method != first:
                found = break_even(ours, share, theirs, zero[first])
                row[-1] += f" ({'pays' if found.pays else 'does not pay'}: would above {found.threshold:.0f} %)"
        rows.append(row)
    yield "## What a question with a gradient costs"
    yield ""
    yield from table(["method", *UNITS.values()], rows)
    yield ""
    yield (
        f"In brackets: whether the method pays less for it than {first}, and above which percentage of questions "
        f"without gradient (it was {zero[first]:.1f} % with {first}) it would. This counts gradients, not what is "
        "learned from each of them."
    )
    yield ""


def _settings_table(methods: Methods) -> list[str]:
    differing = methods.differing_settings()
    if not differing:
        return []
    rows = [[f"`{name}`", *(str(row[m]) for m in methods.trained)] for name, row in differing.items()]
    header = ["setting", *methods.trained]
    return ["All settings in which the trained methods differ:", "", *table(header, rows)]


def _versions(methods: Methods) -> list[str]:
    runs = [run for seeds in methods.runs.values() for run in seeds]
    found = {f"{name} {version}" for run in runs for name, version in run.versions.items()}
    return [f"Versions: {', '.join(sorted(found))}."] if found else []
