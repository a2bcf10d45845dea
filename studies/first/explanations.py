"""What explains the outcomes of the study, in tables and sentences: steps, weights, gradients, training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from tagrpo.analysis.sections import table
from tagrpo.analysis.statistics import Difference, Estimate, difference, estimate

from .claims import STEPS
from .gradients import KINDS, SET_SIZE
from .regimes import Regime

Regimes = Mapping[str, Regime]
WEIGHTS = {"effective_samples": "effective samples", "ratio": "ratio", "clipped": "% clipped", "kl": "KL, 10⁻³ nats"}
PERCENT, THOUSAND = 100.0, 1000.0
TRAINING = {
    "rollout/correct_original": ("% correct, originals", PERCENT),
    "rollout/correct_rephrasings": ("% correct, rephrasings", PERCENT),
    "train/grad_norm": ("gradient norm", 1.0),
}
ANCHORED, OWN = "ta_grpo", "ta_grpo_v1"
"""Two methods whose first responses are the same, scored under the original question and under their own prompts."""


def steps_of(regime: Regime) -> Iterator[tuple[str, str, dict[int, Difference]]]:
    """What is added, `ours − theirs`, and k → difference in pass@k over all test questions; where both have run."""
    for what, ours, theirs in STEPS:
        if {ours, theirs} <= set(regime.methods):
            found = {k: difference(regime.pass_at_k(ours, k), regime.pass_at_k(theirs, k)) for k in (1, 32)}
            yield what, f"{ours} − {theirs}", found


def steps(regimes: Regimes) -> Iterator[str]:
    """What each choice adds to pass@1 and pass@32."""
    yield (
        "From GRPO to TA-GRPO one choice at a time, then two questions that no paper answers. Differences in points of "
        "pass@1 and pass@32 over all test questions, with p-values that are not corrected."
    )
    yield ""
    rows = [
        [name, what, pair, *(f"{d.estimate.signed} (p = {d.p_value:.3f})" for d in found.values())]
        for name, regime in regimes.items()
        for what, pair, found in steps_of(regime)
    ]
    yield from table(["regime", "what is added", "difference", "pass@1", "pass@32"], rows)


def weights(regimes: Regimes) -> Iterator[str]:
    """How the update treats responses to originals and to rephrasings."""
    rows, said = [], []
    for name, regime in regimes.items():
        for method in regime.methods:
            means = {
                (who, scalar): regime.quarters(method, f"{who}/{scalar}").mean()
                for who in ("original", "rephrasings")
                for scalar in WEIGHTS
            }
            if means["rephrasings", "effective_samples"].empty:
                continue
            for who in ("original", "rephrasings"):
                rows.append([name, method, who, *(_change(means[who, scalar], scalar) for scalar in WEIGHTS)])
            if method == ANCHORED:
                ours, theirs = (means[who, "effective_samples"] for who in ("rephrasings", "original"))
                said.append(
                    f"In `{name}` with `{method}`, responses to a rephrasing are worth {100 * ours[0]:.0f} % of their "
                    f"number as samples from the original question in the first quarter of training, and "
                    f"{100 * ours[1]:.0f} % in the last; responses to the original are worth {100 * theirs[0]:.0f} % "
                    f"and {100 * theirs[1]:.0f} %."
                )
    if not rows:
        return
    yield (
        "Means over the first → the last quarter of training and over all seeds, by what the responses were sampled "
        "from. Effective samples: the effective sample size of the weights π(response | score prompt) / π(response | "
        "sample prompt) among the responses to one prompt, as a share of their number. It is 1 where responses are "
        "scored under the prompt that they answer, up to the mismatch of engine and trainer. Ratio, clipped tokens and "
        "KL are taken over the responses that were learned from."
    )
    yield ""
    yield from table(["regime", "method", "responses to", *WEIGHTS.values()], rows)
    yield ""
    yield " ".join(said)


def _change(means: pd.Series, scalar: str) -> str:
    factor = {"clipped": PERCENT, "kl": THOUSAND}.get(scalar, 1.0)
    return " → ".join(f"{factor * x:.3f}" for x in means) if len(means) else "–"


def gradients(regimes: Regimes) -> Iterator[str]:
    """Norms and cosines of parameter gradients by what responses were sampled from."""
    rows = []
    for name, regime in regimes.items():
        for stage in ("start", "end"):
            for method in regime.methods:
                norms, cosines, grpo = (
                    regime.gradients(method, stage, kind).mean() for kind in ("norm", "cosine", "grpo")
                )
                if len(cosines):
                    found = [_number(norms, who) for who in ("original", "rephrasing")]
                    found += [_number(cosines, kind) for kind in KINDS]
                    corrected = corrected_cosine(regime.gradients(method, stage, "cosine"))
                    found += ["–" if corrected is None else _plain(corrected)]
                    rows.append([name, stage, method, *found, *(_number(grpo, w) for w in ("original", "rephrasing"))])
    if not rows:
        return
    yield (
        f"Gradients of the policy term with respect to the parameters, from sets of {SET_SIZE} responses to each "
        "prompt. At the start they are taken at the policy that sampled the first batch; at the end at the trained "
        "policy, with the batches of the last eighth of training. Norms, and cosines between sets of responses to the "
        "same questions, are means over seeds. Two sets of responses to the same prompts differ by noise alone: "
        "*original, original* and *rephrasing, itself* show what noise leaves of a cosine of 1. *Without noise* is "
        "*original, rephrasing* divided by their geometric mean, with a 95 % interval over seeds; it can exceed 1 by "
        "chance. *GRPO* is the cosine with other responses to the originals, sampled from the same policy and with the "
        "advantages of grpo_matched."
    )
    yield ""
    header = ["regime", "stage", "method", "norm, original", "norm, rephrasing", *KINDS, "without noise"]
    yield from table([*header, "original, GRPO", "rephrasing, GRPO"], rows)
    yield ""
    yield " ".join(_said(regimes))


def corrected_cosine(cosines: pd.DataFrame) -> Estimate | None:
    """Cosine between originals and rephrasings, divided by the cosine that noise leaves of 1; mean and interval.

    Args:
        cosines: [seeds, kinds].

    Returns:
        Over seeds. None where there are no rephrasings, fewer than two seeds, or noise leaves nothing.

    >>> row = {"original, original": 0.5, "rephrasing, itself": 0.5, "original, rephrasing": 0.4}
    >>> round(corrected_cosine(pd.DataFrame([row, row])).value, 6)
    0.8
    """
    if KINDS[2] not in cosines or len(cosines) < 2 or (cosines[list(KINDS[:2])] <= 0).any(axis=None):
        return None
    corrected = (cosines[KINDS[2]] / np.sqrt(cosines[KINDS[0]] * cosines[KINDS[1]])).to_frame()
    return difference(corrected, corrected * 0).estimate


def _said(regimes: Regimes) -> Iterator[str]:
    for name, regime in regimes.items():
        found = {m: regime.gradients(m, "start", "cosine") for m in (ANCHORED, OWN) if m in regime.methods}
        for method, cosines in found.items():
            if (corrected := corrected_cosine(cosines)) is None:
                continue
            under = "the original question" if method == ANCHORED else "their own prompt"
            low, high = corrected.low, corrected.high
            where = "below" if high < 1 else "above" if low > 1 else "not different from"
            yield (
                f"In `{name}`, at the start and scored under {under} (`{method}`), responses to rephrasings and to "
                f"originals push the policy in directions with a cosine of {_plain(corrected)} without noise, {where} "
                "1 beyond noise."
            )


def _number(means: pd.Series, name: str) -> str:
    return f"{means[name]:.2f}" if name in means else "–"


def _plain(value: Estimate) -> str:
    return f"{value.value:.2f} [{value.low:.2f}, {value.high:.2f}]".replace("-", "−")


def training(regimes: Regimes) -> Iterator[str]:
    """Success on what is trained on, and gradient norms."""
    rows = []
    for name, regime in regimes.items():
        for method in regime.methods:
            means = [regime.quarters(method, scalar).mean() * factor for scalar, (_, factor) in TRAINING.items()]
            if any(len(found) for found in means):
                shown = [" → ".join(f"{x:.2f}" for x in found) if len(found) else "–" for found in means]
                rows.append([name, method, *shown])
    if not rows:
        return
    yield "Means over the first → the last quarter of training and over all seeds; gradient norms are before clipping."
    yield ""
    yield from table(["regime", "method", *(label for label, _ in TRAINING.values())], rows)


def pass_table(regime: Regime, ks: Sequence[int] = (1, 8, 32)) -> Iterator[str]:
    """Pass@k of every method on every split."""
    splits = list(regime.runs[0]["correct"])
    rows = [
        [method, *(str(estimate(regime.pass_at_k(method, k, split))) for split in splits for k in ks)]
        for method in regime.methods
    ]
    yield from table(["method", *(f"{split} pass@{k}" for split in splits for k in ks)], rows)
