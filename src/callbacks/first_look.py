"""One early warning if a run has nothing to learn from."""

from itertools import chain
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn

from ..distributed import gather_objects
from ..files import write_text
from .shared import BatchDiagnostic, check_at_least_one, current_iteration

NUM_EXAMPLES = 3
SHOWN = 160  # characters of a response: the last ones, where the answer is


class FirstLook(BatchDiagnostic):
    """Callback that warns once, early in training, if a run has nothing to learn from.

    The warning shows responses and names the settings to change. It is also written to `warnings.md` in the
    run directory. There are two cases:

    - In one of the first `patience` batches, no response on any rank has an answer, and all rewards follow
      from verdicts. Batches with graded rewards are excepted, because such rewards may not need an answer.
    - All rewards of the first `patience` batches are equal, so that no method has a gradient.

    Args:
        patience: Number of batches with equal rewards before the warning.

    Raises:
        ValueError: if `patience` is less than 1.
    """

    def __init__(self, patience: int = 2) -> None:
        check_at_least_one("first_look", patience=patience)
        self.patience = patience
        self.rewards: set[float] = set()

    def measure(self, trainer: Trainer, batch: Any, outputs: Any) -> dict[str, float]:
        """Examine the first batches; log nothing."""
        iteration, rollouts = current_iteration(trainer) + 1, batch.rollouts
        if iteration > self.patience:
            return {}
        rows = range(0, len(rollouts.text), max(1, len(rollouts.text) // NUM_EXAMPLES))
        expected = [batch.groups[int(rollouts.question[row])].answer[0] for row in rows]
        shown = [
            f"- {rollouts.text[row][-SHOWN:]!r}, expected {x!r}"
            for row, x in zip(rows, expected, strict=True)
        ]
        verdicts = sum(rollouts.reward_terms.values(), start=rollouts.correct.float())
        graded = not torch.equal(rollouts.rewards, verdicts)
        answered = graded or any(answer is not None for answer in rollouts.answers)
        own = answered, set(rollouts.rewards.tolist()), shown, rollouts.truncated.tolist()
        answers, rewards, examples, cut = zip(*gather_objects(own), strict=True)
        self.rewards = self.rewards.union(*rewards)
        if not any(answers):
            warning = (
                "No answer was found in any response. Check that `reward` reads the form in which the model "
                "answers, that `template` or its instruction asks for that form, and "
                "rollout.sampling.max_new_tokens."
            )
        elif iteration == self.patience and len(self.rewards) == 1:
            warning = (
                f"All rewards of the first {iteration} iterations are {self.rewards.pop():g}: there is "
                "nothing to learn from. Check `reward`, `template`, and whether the questions of `data` are "
                "too hard or too easy."
            )
        else:
            return {}
        self.patience = 0
        if trainer.is_global_zero:
            flags, lines = list(chain(*cut)), list(chain(*examples))[:NUM_EXAMPLES]
            warning = f"{warning} {sum(flags)} of {len(flags)} responses were cut off. Responses:"
            text = "\n".join([f"Iteration {iteration}: {warning}", *lines])
            rank_zero_warn(text)
            write_text(Path(trainer.default_root_dir) / "warnings.md", text + "\n")
        return {}
