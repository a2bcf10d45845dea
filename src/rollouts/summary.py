"""Logged values of a batch of rollouts: sums that add up over ranks, and the means that they make."""

from __future__ import annotations

from collections.abc import Mapping

from ..types import QuestionBatch


def totals_of(batch: QuestionBatch) -> dict[str, float]:
    """Sums over the responses that this rank has sampled, replayed ones left out; they add up over ranks."""
    rollouts = batch.rollouts
    assert rollouts is not None
    sampled = ~rollouts.replayed
    original = (rollouts.rephrasing == 0) & sampled
    return {
        "prompts": len(rollouts.prompts),
        "questions": len(batch.groups),
        "rephrasings": len({(p.question, p.rephrasing) for p in rollouts.prompts if p.rephrasing}),
        "rollouts": float(sampled.sum()),
        "originals": float(original.sum()),
        "tokens": float(rollouts.lengths[sampled].sum()),
        "reward": float(rollouts.rewards[sampled].sum()),
        "correct": float((rollouts.correct & sampled).sum()),
        "correct_original": float((rollouts.correct & original).sum()),
        "truncated": float((rollouts.truncated & sampled).sum()),
        "staleness": float(rollouts.staleness[sampled].sum()),
        "logprob": sum(float(rollouts.logprobs[row].sum()) for row in sampled.nonzero()[:, 0].tolist()),
        **{f"reward_term/{name}": float(term[sampled].sum()) for name, term in rollouts.reward_terms.items()},
    }


def means_of(totals: Mapping[str, float]) -> dict[str, float]:
    """The scalars to log, from `totals_of` over all ranks, `sampled` responses, and those without a verdict, `failed`.

    Means over the sampled responses of a training batch, replayed ones left out:

    - `rollout/reward`: verdict plus shaped terms; `rollout/reward_term/<name>`: one of the shaped terms.
    - `rollout/correct`: share of correct responses; `rollout/{correct_original,correct_rephrasings}`: the same of the
      responses to original questions, and of those to rephrasings.
    - `rollout/length`: tokens per response, stop token included.
    - `rollout/truncated`: share of responses that the length limit ended.
    - `rollout/without_verdict`: share of all sampled responses, thrown-away ones too, that got no verdict (wrong).
    - `rollout/rephrasings`: rephrasings sampled per question.
    - `rollout/entropy`: −mean log-prob per token, nats; unbiased for the entropy at temperature 1.
    """
    count, originals = totals["rollouts"], totals["originals"]
    others = count - originals
    means = {
        "rollout/reward": totals["reward"] / count,
        "rollout/correct": totals["correct"] / count,
        "rollout/length": totals["tokens"] / count,
        "rollout/truncated": totals["truncated"] / count,
        "rollout/without_verdict": totals["failed"] / totals["sampled"],
        "rollout/rephrasings": totals["rephrasings"] / totals["questions"],
    }
    if totals["tokens"]:  # zero only if an engine returned nothing but empty responses
        means["rollout/entropy"] = -totals["logprob"] / totals["tokens"]
    if originals:
        means["rollout/correct_original"] = totals["correct_original"] / originals
    if others:
        means["rollout/correct_rephrasings"] = (totals["correct"] - totals["correct_original"]) / others
    return means | {f"rollout/{name}": sum_ / count for name, sum_ in totals.items() if name.startswith("reward_term/")}
