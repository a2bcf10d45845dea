"""The words and tables of a report, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ..metrics.functional import break_even, cost_per_gradient
from .comparison import ZERO_GRADIENT, Curves, Runs, differing_settings, seconds_of, trained_methods
from .runs import RunFiles, scalar_table
from .statistics import Comparison

HEADLINE_KS = (1, 8, 32)
BUDGET_NAMES = {
    "iterations": "iterations", "updates": "optimizer steps", "prompts": "prompts",
    "rollouts": "sampled responses", "tokens": "response tokens",
}  # fmt: skip


def markdown(runs: Runs, curves: Curves, comparisons: Sequence[Comparison], figures: Mapping[str, str]) -> str:
    """The report."""
    parts = [
        f"# Comparison of {', '.join(runs)}",
        "",
        *_pass_table(runs, curves),
        "",
        "## What differs beyond noise",
        "",
        *_statements(runs, comparisons),
        "",
        "## Budgets",
        "",
        *_budget_table(runs),
        "",
        *_costs(runs),
        *_settings_table(runs),
        "",
        "## Figures",
        "",
        *(line for name, caption in figures.items() for line in (f"![{caption}]({name})", "", caption, "")),
        "## To run a cell again",
        "",
        *(f"    {run.command}" for seeds in runs.values() for run in seeds if run.command),
        "",
        *_versions(runs),
    ]
    return "\n".join(parts) + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = [list(header), ["---"] * len(header), *map(list, rows)]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in lines]


def _pass_table(runs: Runs, curves: Curves) -> list[str]:
    rows = [
        [f"{split} pass@{k}", *(str(methods[method][k]) for method in runs)]
        for split, methods in curves.items()
        for k in HEADLINE_KS
        if all(k in points for points in methods.values())
    ]
    seeds = {method: ", ".join(str(run.seed) for run in seeds) for method, seeds in runs.items()}
    which = (
        "; ".join(f"{m}: {s}" for m, s in seeds.items()) if len(set(seeds.values())) > 1 else seeds[next(iter(runs))]
    )
    sizes = {split: next(iter(runs.values()))[0].test[split]["num_questions"] for split in curves}
    return [
        *table(["%", *runs], rows),
        "",
        "With 95 % intervals by bootstrap over questions and seeds. "
        f"Questions: {', '.join(f'{s} {n}' for s, n in sizes.items())}. Seeds: {which}.",
    ]


def _statements(runs: Runs, comparisons: Sequence[Comparison]) -> Iterator[str]:
    seeds = max((len(c.seeds) for c in comparisons), default=0)
    yield (
        "Differences are paired over questions and seeds, those of the questions without gradient over iterations and "
        "seeds. One counts as beyond noise when its two-sided p-value is below 5 % after Holm's correction for all "
        f"{len(comparisons)} differences listed here. In points, with 95 % intervals that are not corrected."
    )
    if seeds == 1:
        yield (
            "**With one seed the noise between seeds is not measured**: what is said here of these runs may not hold "
            "for another seed."
        )
    pairs: dict[tuple[str, str], list[Comparison]] = {}
    for c in comparisons:
        pairs.setdefault((c.method, c.baseline), []).append(c)
    for method in reversed(list(runs)):
        for baseline in reversed(list(runs)):
            if found := pairs.get((method, baseline)):
                yield from ("", *_pair(runs, method, baseline, found))


def _pair(runs: Runs, method: str, baseline: str, found: Sequence[Comparison]) -> Iterator[str]:
    yield f"**{method} against {baseline}**{_ratio(runs, method, baseline)}"
    yield ""
    for verdict in ("higher", "lower", "undecided"):
        if items := [f"{_named(c.quantity)} {c.difference.signed}" for c in found if c.verdict == verdict]:
            yield f"- {verdict}: {'; '.join(items)}"


def _ratio(runs: Runs, method: str, baseline: str) -> str:
    ours, theirs = (np.mean([run.ledger["rollouts"] for run in runs[m]]) for m in (method, baseline))
    if not ours or not theirs:
        return ""
    same = abs(ours / theirs - 1) < 0.01
    return f" (with {'as many' if same else f'{ours / theirs:.2g} times the'} sampled responses)"


def _named(quantity: str) -> str:
    if quantity == ZERO_GRADIENT:
        return "questions without gradient"
    _, split, k = quantity.split("/")
    return f"{split} pass@{k}"


def _budget_table(runs: Runs) -> Iterator[str]:
    rows = []
    for method, seeds in runs.items():
        zero = scalar_table(seeds, ZERO_GRADIENT)
        budget = [f"{np.mean([run.ledger[name] for run in seeds]):,.0f}" for name in BUDGET_NAMES]
        seconds = f"{np.mean([seconds_of(run) for run in seeds]):,.0f}"
        rows.append([method, str(len(seeds)), *budget, seconds, f"{zero.to_numpy().mean():.1f}" if zero.size else "–"])
    yield from table(["method", "seeds", *BUDGET_NAMES.values(), "seconds", "% without gradient"], rows)
    yield ""
    yield (
        "Means per seed. Seconds are those of training, on a machine that other cells may have shared. The last "
        "column: questions whose advantages are all zero, over all of training."
    )
    trained = [run for method in trained_methods(runs) for run in runs[method]]
    if len({run.method for run in trained}) > 1:
        equal = {name: len({run.ledger[name] for run in trained}) == 1 for name in BUDGET_NAMES}
        matched = [BUDGET_NAMES[name] for name, same in equal.items() if same]
        unmatched = [BUDGET_NAMES[name] for name, same in equal.items() if not same]
        yield ""
        yield f"Equal in all trained runs: {', '.join(matched) or 'nothing'}."
        yield f"Not equal: {', '.join(unmatched) or 'none'}."


def _costs(runs: Runs) -> Iterator[str]:
    """What a question with a gradient costs each trained method, and whether it pays against the first of them."""
    trained = [m for m in trained_methods(runs) if scalar_table(runs[m], ZERO_GRADIENT).size]
    if len(trained) < 2:
        return
    zero = {m: float(scalar_table(runs[m], ZERO_GRADIENT).to_numpy().mean()) for m in trained}
    first = trained[0]
    rows = []
    for method in trained:
        row = [method]
        for unit in ("rollouts", "tokens", "total_seconds"):
            ours, theirs = (_per_question(runs[m], unit) for m in (method, first))
            row.append(_figures(cost_per_gradient(ours, 1, zero[method])))
            if unit == "total_seconds" or method == first:
                continue
            found = break_even(ours, zero[method], theirs, zero[first])
            row[-1] += f" ({'pays' if found.pays else 'does not pay'}: would above {found.threshold:.0f} %)"
        rows.append(row)
    yield "## What a question with a gradient costs"
    yield ""
    yield from table(["method", "responses", "response tokens", "seconds"], rows)
    yield ""
    yield (
        f"In brackets: whether the method pays less for it than {first}, and from which share of questions without "
        f"gradient on (it was {zero[first]:.1f} % with {first}) it would. That counts gradients, not what is learned "
        "from each."
    )
    yield ""


def _figures(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _per_question(seeds: Sequence[RunFiles], unit: str) -> float:
    return float(np.mean([getattr(run.budget, unit) / max(run.budget.questions, 1) for run in seeds]))


def _settings_table(runs: Runs) -> list[str]:
    trained = trained_methods(runs)
    differing = differing_settings({method: runs[method] for method in trained})
    if not differing:
        return []
    rows = [[f"`{name}`", *(str(row[m]) for m in trained)] for name, row in differing.items()]
    return ["All settings in which the trained methods differ:", "", *table(["setting", *trained], rows)]


def _versions(runs: Runs) -> list[str]:
    found = {f"{name} {version}" for seeds in runs.values() for run in seeds for name, version in run.versions.items()}
    return [f"Versions: {', '.join(sorted(found))}."] if found else []
