"""A demonstration takes the place of one sample (LUFFY), as a past success does in replay."""

from dataclasses import replace
from typing import Any

import torch
from transformers import AutoTokenizer

from ...distributed import sum_over_ranks
from ...types import Completion, QuestionBatch, QuestionGroup


class Demonstrations:
    """Replaces one sample of each original question that has a stronger model's response (arXiv 2504.14945, Eq. 4).

    It is verified and pooled like a sample. Its log-probs are 0, since the paper takes π_φ = 1 (section 3.1): the loss
    has A π/(π + γ) at its tokens and no clip (Eq. 6); γ is `loss.replay_shaping`.

    Args:
        tokenizer: Folder or hub name of the policy's tokenizer.
        field: Field of a question's metadata that has the response as text, without an end token.
        form: Response to a question without this field, with `{answer}` for the reference answer; None for no response.
        longest: Most tokens of a demonstration, end token included; longer ones are left out.
    """

    memory = None

    def __init__(self, tokenizer: str, field: str = "demonstration", form: str | None = None, longest: int = 8192):
        self.tokenizer = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False)
        self.field, self.form, self.longest = field, form, longest

    def of(self, group: QuestionGroup) -> Completion | None:
        """Return the demonstration for a question, if it has one that is short enough."""
        text = group.metadata.get(self.field, self.form and self.form.replace("{answer}", group.answer[0]))
        ids = [*self.tokenizer.encode(text or "", add_special_tokens=False), self.tokenizer.eos_token_id]
        past = Completion(token_ids=torch.tensor(ids), logprobs=torch.zeros(len(ids)), truncated=False)
        return past if text and len(ids) <= self.longest else None

    def substitute(self, batch: QuestionBatch, iteration: int, policy: Any) -> QuestionBatch:  # noqa: ARG002
        """Return `batch` with demonstrations as `past` of prompts, which ask for one sample less, but at least one."""
        prompts = []
        for prompt in batch.prompts:
            past = None if prompt.rephrasing or prompt.num_samples < 2 else self.of(batch.groups[prompt.question])
            prompts.append(prompt._replace(num_samples=prompt.num_samples - (past is not None), past=past))
        return replace(batch, prompts=prompts)

    def observe(self, batch: QuestionBatch) -> dict[str, float]:
        """- `demonstrations/correct`: demonstrations in the batch that the verifier accepts, over all ranks."""
        assert batch.rollouts is not None
        accepted = batch.rollouts.replayed & batch.rollouts.correct
        return sum_over_ranks({"demonstrations/correct": float(accepted.sum())})

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state: demonstrations do not change."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""
