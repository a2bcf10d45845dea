"""The answer that a report begins with: did training help, by how much, and how sure is that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .comparison import Methods
from .runs import RunFiles
from .statistics import LEVEL

PROGRESS = "rollout/correct_original"
VERDICTS = {
    True: {"higher": "▲ {} helped", "lower": "▼ {} did harm", "undecided": "{}: not beyond noise"},
    False: {"higher": "▲ {} is better", "lower": "▼ {} is worse", "undecided": "{}: not beyond noise"},
}
"""Whether the baseline is an untrained policy → verdict → what is said of the method."""


@dataclass(frozen=True)
class Answer:
    """The first lines of a report."""

    sentences: Sequence[str]
    """One for each method, the largest gain first."""
    note: str
    """The numbers of questions and seeds behind the sentences, and the statistical test."""


def baseline_of(methods: Methods) -> str:
    """Of the methods that others are compared with, the untrained policy where there is one, else the first."""
    against = {comparison.baseline for comparison in methods.comparisons}
    names = [method for method in methods.runs if method in against] or list(methods.runs)
    return next((method for method in names if method in methods.untrained), names[0])


def headline(methods: Methods) -> tuple[str, int]:
    """The split that the answer is about, or an average where there is one, and the smallest k of its pass@k."""
    part = next((name for name in methods.parts if name not in methods.splits), next(iter(methods.splits)))
    return part, methods.ks(methods.parts[part])[0]


def answer(methods: Methods) -> Answer:
    """The gain of each method over `baseline_of` with its 95 % interval; of a single one, its pass@k."""
    (part, k), baseline = headline(methods), baseline_of(methods)
    gains = [c for c in methods.comparisons if (c.quantity, c.baseline) == (f"pass@k/{part}/{k}", baseline)]
    seeds = max(len(c.seeds) for c in gains) if gains else max(map(len, methods.runs.values()))
    first = next(iter(methods.runs.values()))[0]
    questions = sum(first.test[split]["num_questions"] for split in methods.parts[part])
    note = f"On {questions} questions and {seeds} seed{'s' * (seeds > 1)}, with 95 % intervals."
    if not gains:
        found = ", ".join(f"{m} solves {e} % of {part} at pass@{k}" for m, e in methods.at(k)[part].items())
        return Answer([f"{found}; there is nothing here to compare with."], note)
    untrained = baseline in methods.untrained and bool(methods.trained)
    over = f"the untrained policy ({baseline})" if untrained else baseline
    sentences = [
        f"{VERDICTS[untrained][c.verdict].format(c.method)}: {c.difference.signed} points of pass@{k} on {part} over "
        f"{over}."
        for c in sorted(gains, key=lambda c: -c.difference.value)
    ]
    note += (
        f" Differences on the same questions; ▲ and ▼: beyond noise, at p < {100 * LEVEL:.0f} % after Holm's "
        f"correction for all {len(methods.comparisons)} comparisons; the intervals are not corrected."
    )
    if seeds == 1:
        note += " With one seed, the noise between seeds is not measured."
    return Answer(sentences, note)


def without_evaluation(runs: Sequence[RunFiles]) -> Answer:
    """Say of runs without sampled tests what exact evaluations found, else how often they were right in training."""
    exact = {f"{run.method} seed {run.seed}": run.exact[-1]["splits"] for run in runs if run.exact}
    sentences = [
        f"{name}: exact pass@{k} of {100 * found['pass_at_k'][k]['value']:.1f} % on {split}."
        for name, splits in exact.items()
        for split, found in splits.items()
        for k in list(found["pass_at_k"])[:1]
    ]
    if sentences:
        return Answer(sentences, "From the probabilities of all correct responses; nothing was sampled.")
    logged = {f"{run.method} seed {run.seed}": run.scalar(PROGRESS) for run in runs}
    sentences = [
        f"{name}, not evaluated yet: {100 * values.iloc[0]:.0f} % of responses to originals were correct in iteration "
        f"{values.index[0]}, {100 * values.iloc[-1]:.0f} % in iteration {values.index[-1]}."
        for name, values in logged.items()
        if values is not None and len(values)
    ]
    return Answer(sentences or ["Not evaluated yet."], "Single iterations on different questions: a trend, no result.")
