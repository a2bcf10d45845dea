"""Whether rephrasings and templates differ in difficulty (TA-GRPO, §5.2), and how the update treats their responses."""

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
    """Logs means over the responses of each training batch, over all ranks, by the prompt that was sampled.

    - `rephrasing/<n>/{correct,length,truncated}` and `rephrasing/<n>/reward_term/<name>`: of the responses to the
      original question (n = 0), or to the n-th rephrasings, share of correct ones, tokens, share of truncated ones, and
      a shaped reward;
    - `rephrasing/<n>/{ratio,kl,clipped,entropy}`: policy ratio, divergence from the reference, share of clipped tokens
      and policy entropy, means per token, of the responses that have a gradient, where the training step returns them;
    - `template/<name>/…` and `kind/<name>/…`: the same by template, and by kind (`original`, or that of a rephrasing)
      where questions name the kinds of their rephrasings;
    - `rephrasing/difficulty_variance`: variance of the true success rate over the prompts of one question, without bias
      (`difficulty_variance`), mean over the questions that allow an estimate. Zero, up to noise of either sign, where
      rephrasing does not change how difficult a question is. `tagrpo.analysis.difficulty` tests a whole run.

    Rephrasings and templates are left out where there is only one of them, and all else where the batch has nothing to
    estimate it from.
    """

    def measure(self, trainer: Trainer, batch: Any, outputs: Any) -> dict[str, float]:
        means = batch_means(values_by_prompt(batch.rollouts, outputs if isinstance(outputs, Mapping) else {}))
        for part in ("rephrasing", "template", "kind"):
            # Where all ranks have but one, the means over all responses say it already.
            if len({name.split("/")[1] for name in means if name.count("/") > 1 and name.startswith(part)}) == 1:
                means = {name: mean for name, mean in means.items() if not name.startswith(f"{part}/") or name in WHOLE}
        return means


def values_by_prompt(rollouts: Any, outputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Name of `RephrasingSuccessMonitor` → values of the responses, prompts or questions that it is the mean of."""
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
