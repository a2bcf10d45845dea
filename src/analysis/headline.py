"""First lines of a report: a comparison of one method with a baseline, then one line for each method.

The baseline is a method that sampled as many responses in training as the compared method, if there is one
(`pair_of`). A verdict in words depends on the 95 % interval of the paired difference: `better` or `worse` if
the interval excludes 0, otherwise `cannot be told`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .comparison import ZERO_GRADIENT, Methods
from .early_stopping import stopped_tables
from .statistics import LEVEL, Estimate, difference

AS_MANY = 0.05
"""Largest relative difference at which two numbers of sampled responses count as equal."""
UNDECIDED = "cannot be told"


@dataclass(frozen=True)
class Pair:
    """Comparison that a report begins with: a method and its baseline."""

    method: str
    baseline: str
    ratio: float | None
    """Sampled responses of the method divided by those of the baseline; None if either was not trained."""

    @property
    def alike(self) -> bool:
        """Whether method and baseline sampled about equally many responses in training."""
        return self.ratio is not None and abs(self.ratio - 1) <= AS_MANY


def in_words(estimate: Estimate, *, higher_is_better: bool = True) -> str:
    """Return `better` or `worse` if the interval of a difference excludes 0, otherwise `cannot be told`.

    >>> in_words(Estimate(0.02, 0.01, 0.03)), in_words(Estimate(0.02, -0.01, 0.05))
    ('better', 'cannot be told')
    >>> in_words(Estimate(-0.2, -0.3, -0.1), higher_is_better=False)
    'better'
    """
    if estimate.low > 0:
        return "better" if higher_is_better else "worse"
    if estimate.high < 0:
        return "worse" if higher_is_better else "better"
    return UNDECIDED


def pair_of(methods: Methods) -> Pair | None:
    """Return the pair that a report begins with; None if no two methods share a seed.

    Only methods that share a seed are paired. The first of these pairs that exists is returned:

    1. two trained methods that sampled equally many responses, within 5 %: the method is the last possible
       one, and the baseline is the first of the earlier methods that match it;
    2. the last trained method, and the first trained method;
    3. the last method that is compared with the baseline of the report, and this baseline.
    """
    compared = {(comparison.method, comparison.baseline) for comparison in methods.comparisons}
    trained = list(methods.trained)
    pairs = [
        Pair(method, baseline, ratio_of(methods, method, baseline))
        for place, method in reversed(list(enumerate(trained)))
        for baseline in trained[:place]
        if (method, baseline) in compared
    ]
    for pair in pairs:
        if pair.alike:
            return pair
    if pairs:
        last = [pair for pair in pairs if pair.method == pairs[0].method]
        return last[0]
    others = [method for method, baseline in compared if baseline == methods.baseline]
    found = [method for method in methods.runs if method in others]
    return Pair(found[-1], methods.baseline, None) if found else None


def ratio_of(methods: Methods, method: str, baseline: str) -> float | None:
    """Return the responses of `method` divided by those of `baseline`; None if either was not trained."""
    ours, theirs = (float(methods.budgets["rollouts"][name]) for name in (method, baseline))
    return ours / theirs if ours and theirs else None


def verdict_line(methods: Methods, pair: Pair) -> str:
    """Return the first line of a report: the pair, and its differences in words and in numbers."""
    part, _ = methods.headline
    ks = ends(methods.ks(methods.parts[part]))
    told = [(f"pass@{k}", f"pass@k/{part}/{k}", True) for k in ks]
    told.append(("questions without gradient", ZERO_GRADIENT, False))
    found: list[str] = []
    for name, quantity, higher in told:
        estimate = compared_in(methods, pair.method, pair.baseline, quantity)
        if estimate is not None:
            unit = " points" if not found else ""
            found.append(f"{name} {in_words(estimate, higher_is_better=higher)} ({estimate.signed}{unit})")
    return f"{pair.method} against {against(methods, pair)}, on {part}: {', '.join(found)}."


def against(methods: Methods, pair: Pair) -> str:
    """Return the name of a pair's baseline, and how the numbers of samples compare."""
    if pair.baseline in methods.untrained and pair.method in methods.trained:
        return f"the untrained policy ({pair.baseline})"
    if pair.ratio is None:
        return pair.baseline
    if pair.alike:
        return f"{pair.baseline}, with as many samples"
    return f"{pair.baseline}, with {pair.ratio:.2g} times as many samples"


def method_lines(methods: Methods) -> list[str]:
    """Return one line for each method: samples, pass@k, questions without gradient, gain over the baseline.

    The method with the largest gain in pass@k at the smallest k comes first, and the baseline last.
    """
    part, k = methods.headline
    baseline = methods.baseline
    lines: list[tuple[float, str]] = []
    for method in methods.runs:
        gain = compared_in(methods, method, baseline, f"pass@k/{part}/{k}")
        rank = -math.inf if gain is None else gain.value
        lines.append((rank, _method_line(methods, method, part)))
    return [line for _, line in sorted(lines, key=lambda line: -line[0])]


def _method_line(methods: Methods, method: str, part: str) -> str:
    ks = ends(methods.ks(methods.parts[part]))
    values = [f"pass@{k} {100 * methods.curves[part][method][k].value:.1f} %" for k in ks]
    responses = float(methods.budgets["rollouts"][method])
    share = zero_gradient_of(methods, method)
    if responses and share is not None:
        values.append(f"{share:.1f} % of questions without gradient")
    trained = f"{responses:,.0f} samples" if responses else "not trained"
    line = f"{method} ({trained}): {', '.join(values)}"
    gains = []
    for k in ks:
        estimate = compared_in(methods, method, methods.baseline, f"pass@k/{part}/{k}")
        if estimate is not None:
            gains.append(f"pass@{k} {in_words(estimate)} ({estimate.signed})")
    if not gains:
        return f"{line}."
    untrained = methods.baseline in methods.untrained and method in methods.trained
    over = "the untrained policy" if untrained else methods.baseline
    return f"{line}; against {over} {', '.join(gains)}."


def ends(ks: Sequence[int]) -> list[int]:
    """Return the smallest and the largest k; a single k is returned once."""
    return sorted({ks[0], ks[-1]})


def zero_gradient_of(methods: Methods, method: str) -> float | None:
    """Return the percentage of questions without gradient over all of training; None if it was not logged."""
    table = methods.zero_gradient[method]
    return float(table.to_numpy().mean()) if table.size else None


def break_even(zero_gradient: float, baseline_zero_gradient: float) -> float:
    """Return the ratio of costs per question at which a method and its baseline are equally efficient.

    If z percent of the method's questions and z₀ percent of the baseline's questions have no gradient, the
    ratio is (100 − z) / (100 − z₀). At this ratio, both pay the same for a question that gives a gradient.
    The ratio is infinite if no question of the baseline gives a gradient.

    >>> break_even(0.0, 80.0)
    5.0
    """
    if baseline_zero_gradient >= 100:
        return math.inf
    return (100 - zero_gradient) / (100 - baseline_zero_gradient)


def break_even_note(methods: Methods, pair: Pair) -> str | None:
    """Return a sentence on the break-even of the pair's method with a method that sampled fewer responses.

    The first such trained method is taken whose percentage of questions without gradient was logged. Return
    None if there is no such method, or if the pair's method did not log the percentage.
    """
    ours = zero_gradient_of(methods, pair.method)
    for baseline in methods.trained:
        ratio = ratio_of(methods, pair.method, baseline)
        theirs = zero_gradient_of(methods, baseline)
        if ratio is None or ratio <= 1 + AS_MANY or ours is None or theirs is None:
            continue
        even = break_even(ours, theirs)
        return (
            f"Break-even of {pair.method} against {baseline}: {even:.2f} = (100 − {ours:.1f}) / (100 − {theirs:.1f}). So many "
            f"times as many questions give a gradient; if a question costs more times as much, {baseline} pays less for a "
            f"question with a gradient. Here it costs {ratio:.2f} times as many samples."
        )
    return None


def compared_in(methods: Methods, method: str, baseline: str, quantity: str) -> Estimate | None:
    """Return the paired difference of two methods in a quantity; None if there is no such comparison."""
    for found in methods.comparisons:
        if (found.method, found.baseline, found.quantity) == (method, baseline, quantity):
            return found.difference
    return None


def by_task(methods: Methods, pair: Pair) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table that compares a pair on every split and average.

    Untrained policies outside the pair have columns too. The last row is the percentage of questions without
    gradient.
    """
    beside = [name for name in methods.untrained if name not in (pair.method, pair.baseline)]
    columns = [*beside, pair.baseline, pair.method]
    rows = []
    for part, splits in _averages_first(methods).items():
        for k in ends(methods.ks(splits)):
            estimate = compared_in(methods, pair.method, pair.baseline, f"pass@k/{part}/{k}")
            if estimate is not None:
                values = [f"{100 * methods.curves[part][name][k].value:.1f}" for name in columns]
                rows.append([part, f"pass@{k}", *values, estimate.signed, in_words(estimate)])
    estimate = compared_in(methods, pair.method, pair.baseline, ZERO_GRADIENT)
    if estimate is not None:
        shares = [zero_gradient_of(methods, name) for name in columns]
        values = ["–" if share is None else f"{share:.1f}" for share in shares]
        word = in_words(estimate, higher_is_better=False)
        rows.append(["training", "% without gradient", *values, estimate.signed, word])
    return ["on", "measure", *columns, "difference", "in words"], rows


def stopped_early(methods: Methods, pair: Pair) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table that compares a pair, each run stopped at its best validation.

    A split that a run evaluated only once has no row.
    """
    untrained = methods.untrained[0] if methods.untrained else None
    starts = methods.runs[untrained] if untrained and untrained not in (pair.method, pair.baseline) else []
    rows = []
    for part, splits in _averages_first(methods).items():
        for k in ends(methods.ks(splits)):
            ours, theirs = (
                stopped_tables(methods.runs[name], splits, k, starts) if name in methods.trained else None
                for name in (pair.method, pair.baseline)
            )
            if ours is None or theirs is None:
                continue
            values = [f"{100 * sum(t.to_numpy().mean() for t in of) / len(of):.1f}" for of in (theirs, ours)]
            estimate = difference(ours, theirs).estimate
            rows.append([part, f"pass@{k}", *values, estimate.signed, in_words(estimate)])
    return ["on", "measure", pair.baseline, pair.method, "difference", "in words"], rows


def _averages_first(methods: Methods) -> Mapping[str, Sequence[str]]:
    averages = {part: splits for part, splits in methods.parts.items() if part not in methods.splits}
    return {**averages, **methods.parts}


def note_of(methods: Methods, seeds: int, questions: int) -> str:
    """Return the note below the first lines: numbers of questions and seeds, and how intervals are read."""
    note = (
        f"On {questions} questions and {seeds} seed{'s' * (seeds > 1)}. Differences in points on the same questions, with "
        f"{100 - 100 * LEVEL:.0f} % intervals: better or worse if the interval excludes 0, else {UNDECIDED}. Fewer "
        f"questions without gradient are better. ▲ and ▼ in the tables hold after Holm's correction for all "
        f"{len(methods.comparisons)} comparisons, which these words do not."
    )
    if seeds == 1:
        note += " With one seed, the noise between seeds is not measured."
    return note
