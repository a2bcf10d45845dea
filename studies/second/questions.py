"""How diverse responses to the same training questions are, before and after training (TA-GRPO, Fig. 4).

Correct responses are alike, so that where a question is easier in its own words than rephrased, its responses are less
diverse for that alone. Therefore distances are also compared among correct responses, and among wrong ones.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import torch
from torch import Tensor

from tagrpo.callbacks.embedding_diversity import Encoder
from tagrpo.metrics.functional import mean_pairwise_distance

VERDICTS: Mapping[str, bool | None] = {"all": None, "correct": True, "wrong": False}


def distances(rollouts: pd.DataFrame, encoder: Encoder) -> dict[str, float]:
    """How much farther apart the responses to the rephrasings of a question are than those to its original.

    Args:
        rollouts: With columns `question`, `rephrasing` (0 is the original), `response`, `correct`.
        encoder: Texts → [R, D] embeddings; equal texts are embedded once.

    Returns:
        `questions/<verdict>/distance_difference`: mean pairwise cosine distance among the responses to the rephrasings
        − that among the responses to the original, mean over the questions with two responses of this verdict in
        both; `questions/<verdict>/questions`: how many these are; and of all verdicts, the two distances themselves.
        A verdict without questions has only its number.
    """
    texts = list(dict.fromkeys(rollouts["response"]))
    place = {text: index for index, text in enumerate(texts)}
    embeddings = encoder(texts)[[place[text] for text in rollouts["response"]]]
    rows = rollouts.assign(number=rollouts["question"].factorize()[0], row=range(len(rollouts)))
    found: dict[str, float] = {}
    for verdict, correct in VERDICTS.items():
        chosen = rows if correct is None else rows[rows["correct"] == correct]
        pools = {
            "original": _of_questions(chosen[chosen["rephrasing"] == 0], embeddings),
            "rephrasings": _of_questions(chosen[chosen["rephrasing"] > 0], embeddings),
        }
        both = pd.DataFrame(pools).dropna()
        found[f"questions/{verdict}/questions"] = len(both)
        if len(both):
            found[f"questions/{verdict}/distance_difference"] = float((both["rephrasings"] - both["original"]).mean())
        if correct is None and len(both):
            found |= {f"questions/all/distance_{pool}": float(both[pool].mean()) for pool in pools}
    return found


def _of_questions(rows: pd.DataFrame, embeddings: Tensor) -> pd.Series:
    """Question → mean pairwise distance; NaN for a single response."""
    if not len(rows):
        return pd.Series(dtype=float)
    numbers = torch.tensor(rows["number"].to_numpy())
    values = mean_pairwise_distance(embeddings[rows["row"].tolist()], numbers)
    return pd.Series(values.tolist(), index=sorted(set(rows["number"])))
