"""Whether rephrasings and templates differ in difficulty (TA-GRPO, §1), and how the update treats their responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from ..metrics.functional import difficulty_variance
from .shared import BatchDiagnostic, batch_means

RETURNED = ("ratio", "kl", "clipped", "entropy")
WHOLE = ("rephrasing/difficulty_variance",)


class RephrasingSuccessMonitor(BatchDiagnostic):
    """Logs means over the responses of each training batch, over all ranks, by the prompt that they were sampled from.

    - `rephrasing/<n>/{correct,length,truncated}` and `rephrasing/<n>/reward_term/<name>`: for the responses to the
      original questions (n = 0) or to the n-th rephrasings, share of correct responses, tokens per response, share of
      truncated responses, and mean of a shaped reward;
    - `rephrasing/<n>/{ratio,kl,clipped,entropy}`: policy ratio, divergence from the reference, share of clipped tokens
      and policy entropy, as means per token over the responses with a gradient, where the training step returns them;
    - `template/<name>/…` and `kind/<name>/…`: the same by template, and by kind (`original`, or that of a rephrasing)
      where questions name the kinds of their rephrasings;
    - `rephrasing/difficulty_variance`: unbiased estimate of the variance of the true success rate over the prompts of
      one question (`difficulty_variance`), averaged over the questions that allow one. Zero, up to noise of either
      sign, where rephrasing does not change how difficult a question is. `tagrpo.analysis.rollouts` tests a run.

    Means by rephrasing, template or kind are left out where there is only one of these, and any mean where the batch
    has no value for it.
    """

    def measure(self, trainer: Trainer, batch: Any, outputs: Any) -> dict[str, float]:
        means = batch_means(values_by_prompt(batch.rollouts, outputs if isinstance(outputs, Mapping) else {}))
        for part in ("rephrasing", "template", "kind"):
            # With a single one on all ranks, the means over all responses have the same values.
            if len({name.split("/")[1] for name in means if name.count("/") > 1 and name.startswith(part)}) == 1:
                means = {name: mean for name, mean in means.items() if not name.startswith(f"{part}/") or name in WHOLE}
        return means


def values_by_prompt(rollouts: Any, outputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Metric of `RephrasingSuccessMonitor` → the values, of responses or questions, whose mean is logged."""
    columns = {
        "correct": rollouts.correct.double(),
        "length": rollouts.lengths.double(),
        "truncated": rollouts.truncated.double(),
        **{f"reward_term/{name}": term for name, term in rollouts.reward_terms.items()},
        **{name: outputs[name].cpu() for name in RETURNED if outputs.get(name) is not None},
    }
    templates = [prompt.template for prompt in rollouts.prompts]
    rephrasings = rollouts.rephrasing.new_full((len(templates),), -1).scatter(0, rollouts.prompt, rollouts.rephrasing)
    kinds = [getattr(prompt, "kind", "") for prompt in rollouts.prompts]
    members = {
        **{f"rephrasing/{n}": rephrasings == n for n in rollouts.rephrasing.unique().tolist()},
        **{f"template/{name}": torch.tensor([t == name for t in templates]) for name in sorted(set(templates))},
        **{f"kind/{name}": torch.tensor([kind == name for kind in kinds]) for name in sorted({*kinds} - {""})},
    }
    values = {
        f"{part}/{name}": column[chosen[rollouts.prompt]]
        for part, chosen in members.items()
        for name, column in columns.items()
    }
    variance = difficulty_variance(rollouts.correct, rollouts.prompt, rollouts.question)
    return values | {"rephrasing/difficulty_variance": variance}
