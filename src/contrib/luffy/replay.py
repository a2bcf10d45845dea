"""Demonstrations, each of which replaces one sample, like a past success in replay (LUFFY)."""

from dataclasses import replace
from typing import Any

import torch
from transformers import AutoTokenizer

from ...distributed import sum_over_ranks
from ...types import Completion, QuestionBatch, QuestionGroup


class Demonstrations:
    """Demonstrations of a stronger model, each in place of one sample (arXiv 2504.14945, Eq. 4).

    A demonstration replaces a sample of its question's original prompt, never of a rephrasing's prompt.
    Demonstrations are verified and pooled like samples. Their log-probs are 0, because the paper takes π_φ =
    1 (section 3.1). At their tokens, the loss has A π/(π + γ) and no clip (Eq. 6), where γ is
    `loss.replay_shaping`.

    Args:
        tokenizer: Folder or hub name of the policy's tokenizer.
        field: Field of a question's metadata that has the demonstration as text, without an end token.
        form: Demonstration for a question without this field, with `{answer}` for the reference answer; None
            for no demonstration.
        longest: Largest number of tokens in a demonstration, including the end token; longer demonstrations
            are left out.
    """

    memory = None

    def __init__(
        self, tokenizer: str, field: str = "demonstration", form: str | None = None, longest: int = 8192
    ):
        self.tokenizer = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False)
        self.field, self.form, self.longest = field, form, longest

    def of(self, group: QuestionGroup) -> Completion | None:
        """Return the demonstration for a question; None if it is missing or longer than `longest`."""
        text = group.metadata.get(self.field, self.form and self.form.replace("{answer}", group.answer[0]))
        ids = [*self.tokenizer.encode(text or "", add_special_tokens=False), self.tokenizer.eos_token_id]
        past = Completion(token_ids=torch.tensor(ids), logprobs=torch.zeros(len(ids)), truncated=False)
        return past if text and len(ids) <= self.longest else None

    def substitute(self, batch: QuestionBatch, iteration: int, policy: Any) -> QuestionBatch:  # noqa: ARG002
        """Return `batch` with a demonstration in place of one sample of each original prompt.

        The demonstration becomes the prompt's `past`, and the prompt requests one sample less. Prompts of
        rephrasings, prompts with a single sample and questions without a demonstration are unchanged.
        """
        prompts = []
        for prompt in batch.prompts:
            past = None
            if not prompt.rephrasing and prompt.num_samples >= 2:
                past = self.of(batch.groups[prompt.question])
            prompts.append(prompt._replace(num_samples=prompt.num_samples - (past is not None), past=past))
        return replace(batch, prompts=prompts)

    def observe(self, batch: QuestionBatch) -> dict[str, float]:
        """Return the values to log.

        - `demonstrations/correct`: demonstrations in the batch that the verifier accepts, over all ranks.
        """
        assert batch.rollouts is not None
        accepted = batch.rollouts.replayed & batch.rollouts.correct
        return sum_over_ranks({"demonstrations/correct": float(accepted.sum())})

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state: demonstrations do not change."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: demonstrations have no state."""
