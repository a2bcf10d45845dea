"""What explains the outcomes of a study, in tables and sentences: steps, weights of responses, gradients, training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from .claims import STEPS
from .gradients import KINDS, SET_SIZE
from .sections import table
from .statistics import Difference, Estimate, difference, estimate
from .study import Cells

Regimes = Mapping[str, Cells]
WEIGHTS = {"effective_samples": "effective samples", "ratio": "ratio", "clipped": "% clipped", "kl": "KL, 10⁻³ nats"}
PERCENT, THOUSAND = 100.0, 1000.0
TRAINING = {
    "rollout/correct_original": ("% correct, originals", PERCENT),
    "rollout/correct_neighbours": ("% correct, rephrasings", PERCENT),
    "train/grad_norm": ("gradient norm", 1.0),
}
ANCHORED, OWN = "ta_grpo", "ta_grpo_v1"
"""Two methods with the same responses to begin with, scored under the original and under their own prompts."""


def steps_of(cells: Cells) -> Iterator[tuple[str, str, dict[int, Difference]]]:
    """What is added, `ours − theirs`, and k → difference in pass@k over all test questions, where both have run."""
    for what, ours, theirs in STEPS:
        if {ours, theirs} <= set(cells.methods):
            found = {k: difference(cells.pass_at_k(ours, k), cells.pass_at_k(theirs, k)) for k in (1, 32)}
            yield what, f"{ours} − {theirs}", found


def steps(regimes: Regimes) -> Iterator[str]:
    """What each choice adds to pass@1 and pass@32."""
    yield (
        "From GRPO to TA-GRPO one choice at a time, and two questions that no paper answers: points of pass@1 and "
        "pass@32 over all test questions, with p-values that are not corrected."
    )
    yield ""
    rows = [
        [name, what, pair, *(f"{d.estimate.signed} (p = {d.p_value:.3f})" for d in found.values())]
        for name, cells in regimes.items()
        for what, pair, found in steps_of(cells)
    ]
    yield from table(["regime", "what is added", "difference", "pass@1", "pass@32"], rows)


def weights(regimes: Regimes) -> Iterator[str]:
    """How the update treats responses to originals and to rephrasings."""
    rows, said = [], []
    for name, cells in regimes.items():
        for method in cells.methods:
            means = {
                (who, scalar): cells.quarters(method, f"{who}/{scalar}").mean()
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
                    f"In `{name}`, under `{method}`, the responses to a rephrasing count for {100 * ours[0]:.0f} % of "
                    f"their number as samples from the original question in the first quarter, and for "
                    f"{100 * ours[1]:.0f} % in the last; those to the original for {100 * theirs[0]:.0f} % and "
                    f"{100 * theirs[1]:.0f} %."
                )
    if not rows:
        return
    yield (
        "Means over the first → the last quarter of training, over all seeds, by what responses were sampled from. "
        "Effective samples: of the weights π(response | score prompt) / π(response | sample prompt) among the "
        "responses to one prompt, as a share of their number; 1 where a response is scored under the prompt that it "
        "answers, up to the mismatch of engine and trainer. Ratio, clipped tokens and KL: over the responses that were "
        "learned from."
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
    for name, cells in regimes.items():
        for stage in ("start", "end"):
            for method in cells.methods:
                norms, cosines, grpo = (
                    cells.gradients(method, stage, kind).mean() for kind in ("norm", "cosine", "grpo")
                )
                if len(cosines):
                    found = [_number(norms, who) for who in ("original", "rephrasing")]
                    found += [_number(cosines, kind) for kind in KINDS]
                    corrected = corrected_cosine(cells.gradients(method, stage, "cosine"))
                    found += ["–" if corrected is None else _plain(corrected)]
                    rows.append([name, stage, method, *found, *(_number(grpo, w) for w in ("original", "rephrasing"))])
    if not rows:
        return
    yield (
        f"Gradients of the policy term by the parameters, from sets of {SET_SIZE} responses to each prompt: at the "
        "start at the policy that sampled the first batch; at the end at the trained policy, with the batches of the "
        "last eighth of training. Norms, and cosines between sets of responses to the same questions, are means over "
        "seeds. Two sets of responses to the same prompts differ by noise alone: *original, original* and "
        "*rephrasing, itself* are what noise leaves of a cosine of 1, and *without noise* is *original, rephrasing* "
        "over their geometric mean, with a 95 % interval over seeds; it can exceed 1 by chance. *GRPO*: cosine with "
        "sets of other responses to the originals, with the advantages of grpo_matched, from the same policy."
    )
    yield ""
    header = ["regime", "stage", "method", "norm, original", "norm, rephrasing", *KINDS, "without noise"]
    yield from table([*header, "original, GRPO", "rephrasing, GRPO"], rows)
    yield ""
    yield " ".join(_said(regimes))


def corrected_cosine(cosines: pd.DataFrame) -> Estimate | None:
    """Cosine between originals and rephrasings over what noise leaves of one, mean and interval over seeds.

    Args:
        cosines: [seeds, kinds].

    Returns:
        None where there are no rephrasings, fewer than two seeds, or noise leaves nothing.

    >>> row = {"original, original": 0.5, "rephrasing, itself": 0.5, "original, rephrasing": 0.4}
    >>> round(corrected_cosine(pd.DataFrame([row, row])).value, 6)
    0.8
    """
    if KINDS[2] not in cosines or len(cosines) < 2 or (cosines[list(KINDS[:2])] <= 0).any(axis=None):
        return None
    corrected = (cosines[KINDS[2]] / np.sqrt(cosines[KINDS[0]] * cosines[KINDS[1]])).to_frame()
    return difference(corrected, corrected * 0).estimate


def _said(regimes: Regimes) -> Iterator[str]:
    for name, cells in regimes.items():
        found = {m: cells.gradients(m, "start", "cosine") for m in (ANCHORED, OWN) if m in cells.methods}
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
    for name, cells in regimes.items():
        for method in cells.methods:
            means = [cells.quarters(method, scalar).mean() * factor for scalar, (_, factor) in TRAINING.items()]
            if any(len(found) for found in means):
                shown = [" → ".join(f"{x:.2f}" for x in found) if len(found) else "–" for found in means]
                rows.append([name, method, *shown])
    if not rows:
        return
    yield "Means over the first → the last quarter of training, over all seeds; gradients before they are clipped to 1."
    yield ""
    yield from table(["regime", "method", *(label for label, _ in TRAINING.values())], rows)


def pass_table(cells: Cells, ks: Sequence[int] = (1, 8, 32)) -> Iterator[str]:
    """Pass@k of every method on every split."""
    splits = list(cells.cells[0]["correct"])
    rows = [
        [method, *(str(estimate(cells.pass_at_k(method, k, split))) for split in splits for k in ks)]
        for method in cells.methods
    ]
    yield from table(["method", *(f"{split} pass@{k}" for split in splits for k in ks)], rows)
