"""The plots beside the Markdown report of a comparison, and the scalars that reports show."""

from __future__ import annotations

from matplotlib.figure import Figure

from ..metrics.functional import CAUSES
from . import plots
from .answer import baseline_of
from .comparison import ZERO_GRADIENT, Methods
from .run_plots import diversity_densities, why_no_gradient

SERIES = {
    ZERO_GRADIENT: "no gradient (all advantages zero)",
    "uniform_reward/original": "equal rewards: original (G)",
    "uniform_reward/rephrasings": "equal rewards: rephrasings (N·G)",
    "uniform_reward/rephrasings_matched": "equal rewards: G of the rephrasings",
}
LEARNING = {
    "rollout/correct_original": "correct responses to originals",
    "rollout/entropy": "policy entropy (nats per token)",
    "train/grad_norm": "gradient norm",
    "answer_diversity/distinct_wrong_share": "different answers among wrong ones",
}


def pictures(methods: Methods) -> dict[str, tuple[Figure, str]]:
    """File name → plot and its caption."""
    styles, trained, k = plots.looks(methods.runs), methods.trained, methods.largest_k
    made = {
        "pass_at_k.png": (
            plots.pass_at_k_curves(methods.curves, styles),
            "Pass@k over k. Bars: 95 % intervals over questions and seeds.",
        )
    }
    if len(methods.runs) > 1 and trained:
        baseline = baseline_of(methods)
        made["gains.png"] = (
            plots.pass_at_k_gains(methods.gains(baseline), baseline, styles),
            f"Pass@k minus that of {baseline} on the same questions, with 95 % intervals for each k on its own.",
        )
    if trained:
        means = "Running means over an eighth of training; thick: mean over seeds"
        made |= {
            "zero_gradient.png": (
                plots.series_over_training(trained, SERIES, "% of questions", styles, together=True),
                f"Questions without gradient. {means}.",
            ),
            "learning.png": (plots.series_over_training(trained, LEARNING, "", styles), f"Training. {means}."),
            "budget.png": (
                plots.against(methods.at(k), methods.tokens, "response tokens sampled in training", k, styles),
                f"Pass@{k} against the response tokens that were sampled in training.",
            ),
        }
    series = methods.data_series
    if any(len(joined) > 1 for joined in series):
        of_series = plots.looks(m for m in methods.runs if not any(m in joined[1:] for joined in series))
        made["data.png"] = (
            plots.against(methods.at(k), methods.training_questions, "training questions", k, of_series, series),
            f"Pass@{k} against the questions that were trained on. Lines join methods that differ in nothing else.",
        )
    first = {method: seeds[0] for method, seeds in trained.items()}
    if any(f"zero_gradient/{CAUSES[0]}" in run.metrics for run in first.values()):
        made["causes.png"] = (
            why_no_gradient(first),
            "Why questions gave no gradient: the first seed of each method, running means over an eighth of training.",
        )
    if any(len(run.diversity) for seeds in methods.runs.values() for run in seeds):
        made["diversity.png"] = (
            diversity_densities(trained),
            "Mean pairwise embedding distance of the responses to a question: density over questions.",
        )
    return made
