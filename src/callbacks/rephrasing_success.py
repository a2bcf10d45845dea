"""Difficulty of rephrasings and templates (TA-GRPO, §1), and statistics of the update for each of them."""

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Trainer

from ..metrics.functional import difficulty_variance
from .shared import BatchDiagnostic, batch_means

RETURNED = ("ratio", "kl", "clipped", "entropy")


class RephrasingSuccessMonitor(BatchDiagnostic):
    """Callback that logs means over the responses of each training batch, grouped by sample prompt.

    The means include the responses of all ranks.

    - `rephrasing/<n>/{correct,length,truncated}` and `rephrasing/<n>/reward_term/<name>`: for the responses
      to the original questions (n = 0) or to the n-th rephrasings, share of correct responses, tokens per
      response, share of truncated responses, and mean of a shaped reward;
    - `rephrasing/<n>/{ratio,kl,clipped,entropy}`: policy ratio, divergence from the reference, share of
      clipped tokens and policy entropy, as means per token over the responses with a gradient, if the
      training step returns these values;
    - `template/<name>/…` and `kind/<name>/…`: the same means by template, and by kind (`original`, or the
      kind of a rephrasing) if questions name the kinds of their rephrasings;
    - `rephrasing/difficulty_variance`: unbiased estimate of the variance of the true success rate over the
      prompts of one question (`difficulty_variance`), averaged over the questions that allow an estimate. The
      mean is zero, up to noise of either sign, if rephrasing does not change the difficulty of questions.
      `tagrpo.analysis.rollouts` tests this for a whole run.

    Means by rephrasing are left out if there is only one rephrasing; likewise for templates and kinds. A mean
    without values in the batch is left out too.
    """

    def measure(self, trainer: Trainer, batch: Any, outputs: Any) -> dict[str, float]:
        rollouts, returned = batch.rollouts, outputs if isinstance(outputs, Mapping) else {}
        columns = {
            "correct": rollouts.correct.double(),
            "length": rollouts.lengths.double(),
            "truncated": rollouts.truncated.double(),
            **{f"reward_term/{name}": term for name, term in rollouts.reward_terms.items()},
            **{name: returned[name].cpu() for name in RETURNED if returned.get(name) is not None},
        }
        prompts = [rollouts.prompts[row] for row in rollouts.prompt.tolist()]
        labels = {
            "rephrasing": rollouts.rephrasing.tolist(),
            "template": [prompt.template for prompt in prompts],
            "kind": [getattr(prompt, "kind", "") or None for prompt in prompts],
        }
        members = {
            f"{part}/{label}": torch.tensor([each == label for each in given])
            for part, given in labels.items()
            for label in sorted({*given} - {None})
        }
        values = {
            f"{part}/{name}": column[own] for part, own in members.items() for name, column in columns.items()
        }
        variance = difficulty_variance(rollouts.correct, rollouts.prompt, rollouts.question)
        means = batch_means(values | {"rephrasing/difficulty_variance": variance})
        for part in labels:
            # With a single one on all ranks, the means over all responses have the same values.
            parts = [name for name in means if name.startswith(f"{part}/") and name.count("/") > 1]
            if len({name.split("/")[1] for name in parts}) == 1:
                means = {name: mean for name, mean in means.items() if name not in parts}
        return means
