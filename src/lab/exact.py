"""Exact probability that a sampled response is correct, from scoring all correct responses without sampling.

A response is the tokens up to and including a stop token, or the first `max_new_tokens` tokens. The verifier
reads its text without special tokens. The sum is complete if `EnumeratingVerifier.correct_responses` is
complete and if each text has a single spelling in tokens (`build_answer_tokenizer`); with other tokenizers,
the sum is a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..modules.policy.logprobs import PromptedResponses, Scorer
from ..packing.policy import CausalPolicy
from ..types import EnumeratingVerifier, QuestionBatch, SamplingConfig


def correct_tokens(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, stop_ids: Sequence[int], max_new_tokens: int
) -> list[Tensor]:
    """Return all responses with one of the correct `texts`, each as tokens [T_r] long.

    A text shorter than `max_new_tokens` gives one response for each stop token; a text of exactly this length
    gives one response without a stop token; a longer text gives no response.

    Raises:
        ValueError: if the tokens of a text decode to another text, so that no response has this text.
    """
    responses: list[list[int]] = []
    meant: list[str] = []
    encoded = tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []
    for text, ids in zip(texts, encoded, strict=True):
        if len(ids) <= max_new_tokens:
            ends = [[stop] for stop in stop_ids] if len(ids) < max_new_tokens else [[]]
            responses += [ids + end for end in ends]
            meant += [text] * len(ends)
    if not responses:
        return []
    for text, read in zip(meant, tokenizer.batch_decode(responses, skip_special_tokens=True), strict=True):
        if read != text:
            raise ValueError(
                f"Expected the tokenizer to decode the tokens of {text!r} to the same text, but they read "
                f"{read!r}, which the verifier would score otherwise. Use a tokenizer that has the words of "
                "the task."
            )
    return [torch.tensor(ids) for ids in responses]


@torch.no_grad()
def exact_success(
    scorer: Scorer, prompts: Sequence[Tensor], correct: Sequence[Sequence[Tensor]], temperature: float = 1.0
) -> Tensor:
    """Return the probability of a correct response to each prompt, [Q] float64.

    Collective: ranks without prompts must call it too.

    Args:
        scorer: Scorer of the policy.
        prompts: Tokens of Q prompts, [L_q] long each.
        correct: All correct responses to each of the Q prompts; see `correct_tokens`.
        temperature: Sampling temperature; the policy's temperature is restored afterwards.

    Raises:
        FloatingPointError: if the policy gives no probabilities.
    """
    success = torch.zeros(len(prompts), dtype=torch.float64)
    with _at_temperature(scorer.policy, temperature):
        for part in probabilities(scorer, prompts, correct):
            for prompt, p in part:
                success[prompt] += p.cpu()
    if broken := int(success.isnan().sum()):
        raise FloatingPointError(
            f"Expected the policy to give probabilities, but for {broken} of {len(success)} prompts they are "
            "NaN. Check the weights at model.path, or of the checkpoint."
        )
    return success.clamp(max=1.0)  # rounding may exceed it slightly


def probabilities(
    scorer: Scorer, prompts: Sequence[Tensor], correct: Sequence[Sequence[Tensor]]
) -> Iterator[list[tuple[int, Tensor]]]:
    """Yield lists of (row of the prompt, probability) for correct responses. Collective.

    Probabilities are [] float64 with gradient.
    """
    responses = [ids for found in correct for ids in found]
    prompt = torch.repeat_interleave(torch.tensor([len(found) for found in correct], dtype=torch.long))
    scored = PromptedResponses(prompts=prompts, prompt=prompt, responses=responses)
    for packed, scores in scorer.micro_batches(scored, torch.arange(len(responses))):
        parts = zip(prompt[packed.rows].tolist(), scores.logprobs.split(packed.lengths.tolist()), strict=True)
        yield [(row, logprobs.double().sum().exp()) for row, logprobs in parts]


@dataclass(frozen=True)
class BatchSuccess:
    """Exact success probability of every prompt of a batch, including rephrasings."""

    verifier: EnumeratingVerifier
    tokenizer: PreTrainedTokenizerBase
    stop_ids: Sequence[int]
    sampling: SamplingConfig

    def __call__(self, scorer: Scorer, batch: QuestionBatch) -> Tensor:
        """Return the probabilities in the order of `batch.prompts`, [P] float64. Collective."""
        correct = self.correct(batch)
        return exact_success(scorer, [p.token_ids for p in batch.prompts], correct, self.sampling.temperature)

    def correct(self, batch: QuestionBatch) -> list[list[Tensor]]:
        """Return for each of the P prompts a list of all correct responses, in tokens."""
        limit = self.sampling.max_new_tokens
        by_question = [
            correct_tokens(
                self.verifier.correct_responses(group.answer), self.tokenizer, self.stop_ids, limit
            )
            for group in batch.groups
        ]
        return [by_question[prompt.question] for prompt in batch.prompts]


@contextmanager
def _at_temperature(policy: CausalPolicy, temperature: float) -> Iterator[None]:
    before, policy.temperature = policy.temperature, temperature
    try:
        yield
    finally:
        policy.temperature = before
