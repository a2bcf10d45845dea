"""Conversion of sampled responses to `Rollouts`: decoding, scores, reward terms, and logged scalars."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, groupby, islice
from typing import Any, Literal

import torch
from torch import Tensor

from ..rewards.response import is_mark, opens_thoughts, split_response
from ..types import (
    LARGEST_REWARD,
    NO_REWARD,
    Completion,
    InvalidScoreError,
    PromptVerifier,
    QuestionBatch,
    RewardTerm,
    Rollouts,
    Score,
    Seconds,
    Verifier,
)
from ..types.checks import check_column, found, name_of, own_code

Decode = Callable[[list[Tensor]], list[str]]
"""[n] of [T] long → [n] texts without special tokens."""
SETTING = "rollout.verifier"
"""Setting that chooses the verifier."""

Reads = Literal["answer", "response"]
"""Part of a response that a verifier gets: the answer, or the whole response."""


class Decoder:
    """Decoder of responses that drops the tokenizer's special tokens, except marks of thoughts.

    Marks of thoughts show where the answer is.

    Attributes:
        tokenizer: A tokenizer of transformers, to be set before the first call.
    """

    tokenizer: Any

    def __call__(self, token_ids: list[Tensor]) -> list[str]:
        """Return the texts of responses, [n] of [T] long."""
        special = getattr(self.tokenizer, "all_special_tokens", ())
        texts: list[str]
        if not any(map(is_mark, special)):
            texts = self.tokenizer.batch_decode(token_ids, skip_special_tokens=True)
            return texts
        plain = [token for token in special if not is_mark(token)]
        dropped = set(self.tokenizer.convert_tokens_to_ids(plain))
        kept = [[number for number in row.tolist() if number not in dropped] for row in token_ids]
        texts = self.tokenizer.batch_decode(kept, skip_special_tokens=False)
        return texts


class Scoring:
    """Scoring of one batch, made before sampling so that workers can score while the engine samples.

    Verifiers get the answer of each response, without its thoughts (`split_response`). They get the whole
    response if `verifier_reads` is `response` or `Verifier.reads_response` is true. `Rollouts.text` always
    has whole responses. `step` is the number of optimizer steps behind the weights that sample.

    Attributes:
        failures: Reason, such as `timeout` → number of responses without a verdict; filled by `rollouts`.
    """

    def __init__(
        self,
        batch: QuestionBatch,
        verifier: Verifier,
        decode: Decode,
        verifier_reads: Reads = "answer",
        step: int = 0,
    ) -> None:
        self.batch = batch
        self.failures: Counter[str] = Counter()
        self.references = [batch.groups[prompt.question].answer for prompt in batch.prompts]
        self.opened = [opens_thoughts(prompt.text) for prompt in batch.prompts]
        self.verifier = verifier
        self.decode = decode
        self.step = step
        self.reads_answer = verifier_reads == "answer" and not verifier.reads_response
        self._early: dict[int, tuple[list[str], Callable[[], list[Score]]]] = {}

    def deliver(self, prompt: int, completions: list[Completion]) -> None:
        """Pass a prompt's responses to the verifier's workers if it has workers, and return at once."""
        if self.verifier.in_background:
            texts, read = self._read([(prompt, completion) for completion in completions])
            with own_code(self.verifier, SETTING):
                if isinstance(self.verifier, PromptVerifier):
                    wait = self._start(self.verifier, prompt, read, completions)
                else:
                    wait = self.verifier.score_async(read, [self.references[prompt]] * len(read))
            self._early[prompt] = texts, partial(checked_scores, self.verifier, len(read), wait)

    def _start(
        self, verifier: PromptVerifier, prompt: int, read: Sequence[str], completions: Sequence[Completion]
    ) -> Callable[[], list[Score]]:
        """Start scoring responses to a prompt with a verifier that also reads the prompt."""
        asked = self.batch.prompts[prompt]
        token_ids = [completion.token_ids for completion in completions]
        return verifier.score_prompt(asked, self.batch.groups[asked.question], read, token_ids, self.step)

    def rollouts(
        self,
        completions: Sequence[Sequence[Completion]],
        staleness: int,
        terms: Mapping[str, RewardTerm],
        seconds: Seconds,
    ) -> Rollouts:
        """Return the scored responses by prompt; a replayed response comes after the sampled ones.

        Args:
            completions: [P][G] sampled responses.
            staleness: Number of optimizer steps between the weights that sampled and the current weights.
            terms: Reward terms to add; see `with_terms`.
            seconds: Seconds of the iteration's phases, which the rollouts share. The time of scoring is
                added.
        """
        with seconds.measure("score"):
            pairs = zip(self.batch.prompts, completions, strict=True)
            every = [samples if prompt.past is None else [*samples, prompt.past] for prompt, samples in pairs]
            texts, scores = self.scored(every)
            self.failures.update(score.failure for score in scores if score.failure)
            rollouts = assemble(self.batch, every, texts, scores, staleness, seconds)
            return with_terms(rollouts, self.batch, terms) if terms else rollouts

    def scored(self, completions: Sequence[Sequence[Completion]]) -> tuple[list[str], list[Score]]:
        """Return the texts [R] and scores [R] of all responses, given as [P][G] by prompt.

        Responses that were delivered early are being scored already. All other responses are scored now.
        """
        early = [self._early.get(prompt, ([], list)) for prompt in range(len(completions))]
        # Replayed ones are late, too.
        late = [(p, c) for p, samples in enumerate(completions) for c in samples[len(early[p][0]) :]]
        texts, read = self._read(late)
        scores = checked_scores(self.verifier, len(read), partial(self._score, late, read)) if late else []
        others = iter(list(zip(texts, scores, strict=True)))
        rows: list[tuple[str, Score]] = []
        for samples, (delivered, wait) in zip(completions, early, strict=True):
            rows += zip(delivered, wait(), strict=True)
            rows += islice(others, len(samples) - len(delivered))
        return [text for text, _ in rows], [score for _, score in rows]

    def _score(self, responses: Sequence[tuple[int, Completion]], read: Sequence[str]) -> Sequence[Score]:
        """Score (row of the prompt, response) pairs by the texts `read`, which the verifier reads."""
        if not isinstance(self.verifier, PromptVerifier):
            references = [self.references[prompt] for prompt, _ in responses]
            return self.verifier.score_batch(read, references)
        texts = iter(read)
        started = []  # all before the first is waited for
        for (prompt, _), members in groupby(responses, self._sampled_for):
            completions = [completion for _, completion in members]
            wait = self._start(self.verifier, prompt, list(islice(texts, len(completions))), completions)
            started.append((len(completions), wait))
        scores: list[Score] = []
        for count, wait in started:
            scores += checked_scores(self.verifier, count, wait)
        return scores

    def _sampled_for(self, response: tuple[int, Completion]) -> tuple[int, bool]:
        """Return the row of a response's prompt, and whether the response is replayed."""
        prompt, completion = response
        return prompt, completion is self.batch.prompts[prompt].past

    def _read(self, responses: Sequence[tuple[int, Completion]]) -> tuple[list[str], list[str]]:
        """Return the texts of (row of the prompt, response) pairs, and the parts that the verifier reads."""
        if not responses:  # a tokenizer decodes an empty list to one text, and a rank may have no question
            return [], []
        texts = self.decode([completion.token_ids for _, completion in responses])
        if not self.reads_answer:
            return texts, list(texts)
        answers = []
        for text, (prompt, completion) in zip(texts, responses, strict=True):
            parts = split_response(text, opened=self.opened[prompt], truncated=completion.truncated)
            answers.append(parts.answer)
        return texts, answers


def checked_scores(verifier: Verifier, count: int, score: Callable[[], object]) -> list[Score]:
    """Call `score`, and check that the verifier has returned `count` scores.

    Raises:
        TypeError: if the verifier returns anything else, or builds a `Score` with invalid values.
        ValueError: if the verifier returns a wrong number of scores, or a text that UTF-8 can't encode, which
            no file could record.
        RuntimeError: if the verifier calls `sys.exit`.
    """
    expected = (
        f"Expected {name_of(verifier)} ({SETTING}) to return a Score for each of {count} responses, but got"
    )
    try:
        with own_code(verifier, SETTING):
            scores = score()
    except InvalidScoreError as error:
        raise TypeError(f"{expected} an invalid one. {error}") from error
    if not isinstance(scores, list | tuple):
        raise TypeError(f"{expected} {found(scores)}.")
    for row, one in enumerate(scores):
        if not isinstance(one, Score):
            raise TypeError(f"{expected} {found(one)} for response {row}.")
        for name, text in (("answer", one.answer), ("failure", one.failure)):
            if text and _has_surrogate(text):
                raise ValueError(
                    f"{expected} a lone surrogate in Score.{name}, {found(text)}, for response {row}."
                )
    if len(scores) != count:
        raise ValueError(f"{expected} {len(scores)} scores.")
    return list(scores)


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def assemble(
    batch: QuestionBatch,
    completions: Sequence[Sequence[Completion]],
    texts: Sequence[str],
    scores: Sequence[Score],
    staleness: int,
    seconds: Seconds,
) -> Rollouts:
    """Return the rollouts of `batch`, with rewards only from scores.

    `completions` are [P][G], `texts` and `scores` [R]. `staleness` is the number of optimizer steps between
    the weights that sampled and the current weights. `seconds` is shared, not copied, so that later phases of
    the iteration can add their seconds.
    """
    flat = list(chain.from_iterable(completions))
    rows = torch.repeat_interleave(torch.tensor([len(samples) for samples in completions], dtype=torch.long))
    pairs = zip(batch.prompts, completions, strict=True)
    past = [sample is prompt.past for prompt, samples in pairs for sample in samples]
    correct = torch.tensor([score.correct for score in scores], dtype=torch.bool)
    question = torch.tensor([p.question for p in batch.prompts], dtype=torch.long)[rows]
    return Rollouts(
        prompts=batch.prompts,
        prompt=rows,
        question=question,
        rephrasing=torch.tensor([p.rephrasing for p in batch.prompts], dtype=torch.long)[rows],
        token_ids=[completion.token_ids for completion in flat],
        logprobs=[completion.logprobs for completion in flat],
        truncated=torch.tensor([completion.truncated for completion in flat], dtype=torch.bool),
        text=texts,
        correct=correct,
        answers=[score.answer for score in scores],
        rewards=rewards_of(scores, question),
        reward_parts=parts_of(scores),
        replayed=torch.tensor(past, dtype=torch.bool),
        staleness=torch.full((len(flat),), staleness),
        seconds=seconds,
    )


def rewards_of(scores: Sequence[Score], question: Tensor) -> Tensor:
    """Return the reward of each response, [R] float32: `Score.reward`, or the verdict if this is None.

    A response without a reward (`NO_REWARD`) gets the mean reward of the other responses to its question, or
    0 if none of these has a reward. `question` is [R] long.

    >>> scores = [Score(True, None, reward=0.75), Score(False, None, reward=0.25), Score(False, None, NO_REWARD)]
    >>> rewards_of([*scores, Score(True, "7")], torch.tensor([0, 0, 0, 1]))
    tensor([0.7500, 0.2500, 0.5000, 1.0000])
    """
    rewards = torch.zeros(len(scores), dtype=torch.double)
    missing = torch.zeros(len(scores), dtype=torch.bool)
    for row, score in enumerate(scores):
        missing[row] = score.failure == NO_REWARD
        rewards[row] = float(score.correct) if score.reward is None else score.reward
    for row in missing.nonzero()[:, 0].tolist():
        others = rewards[(question == question[row]) & ~missing]
        if len(others):
            rewards[row] = others.mean()
    return rewards.float()


def parts_of(scores: Sequence[Score]) -> dict[str, Tensor]:
    """Return name → [R] float32 of `Score.parts`; NaN if a score lacks the part."""
    parts: dict[str, Tensor] = {}
    for row, score in enumerate(scores):
        for name, value in score.parts:
            if name not in parts:
                parts[name] = torch.full((len(scores),), torch.nan)
            parts[name][row] = value
    return dict(sorted(parts.items()))


def with_terms(rollouts: Rollouts, batch: QuestionBatch, terms: Mapping[str, RewardTerm]) -> Rollouts:
    """Add all `terms` to the rewards of the rollouts.

    Raises:
        TypeError: if a term returns no tensor.
        ValueError: if a term returns a tensor of a wrong shape, or not on the CPU.
        FloatingPointError: if a term, or the sum of all terms, is not finite or is above `LARGEST_REWARD` in
            absolute value.
        RuntimeError: if a term calls `sys.exit`.
    """
    added: dict[str, Tensor] = {}
    for name, term in terms.items():
        setting = f"rollout.reward_terms.{name}"
        if not len(rollouts):  # a rank may have no reformulated question to ask
            added[name] = torch.zeros(0)
            continue
        with own_code(term, setting):
            values = term(rollouts, batch.groups)
        added[name] = check_column(values, len(rollouts), term, setting)
    rewards = sum(added.values(), start=rollouts.rewards)
    for name, column in {**added, "*": rewards}.items():
        if others := int((column.abs() > LARGEST_REWARD).sum()):
            raise FloatingPointError(
                f"Expected rollout.reward_terms.{name} to be at most {LARGEST_REWARD:g} in absolute value, "
                f"but {others} of {len(column)} are not: they would overflow float32. Lower the weight of "
                "the term."
            )
    return replace(rollouts, rewards=rewards, reward_terms=added)


def spent_on(batch: QuestionBatch) -> dict[str, int]:
    """Return this rank's numbers of prompts, rollouts and tokens; replayed rollouts do not count."""
    rollouts = batch.rollouts
    assert rollouts is not None
    sampled = ~rollouts.replayed
    return {
        "prompts": len(rollouts.prompts),
        "rollouts": int(sampled.sum()),
        "tokens": int(rollouts.lengths[sampled].sum()),
    }


def totals_of(batch: QuestionBatch) -> dict[str, float]:
    """Return the sums that `means_of` divides, over the responses that this rank has sampled.

    Examples are numbers of prompts, responses and tokens, and sums of rewards. Replayed responses are left
    out. The totals of several ranks can be added.
    """
    rollouts = batch.rollouts
    assert rollouts is not None
    sampled = ~rollouts.replayed
    original = (rollouts.rephrasing == 0) & sampled
    parts: dict[str, float] = {}
    for name, values in rollouts.reward_parts.items():
        applied = values[sampled & ~values.isnan()]
        parts[f"reward_part/{name}"] = float(applied.double().sum())
        parts[f"with_reward_part/{name}"] = float(len(applied))
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
        **parts,
    }


def means_of(totals: Mapping[str, float]) -> dict[str, float]:
    """Return the scalars to log for a batch.

    `totals` are the sums of `totals_of` over all ranks, and `spent_rollouts` and `spent_failed` (without a
    verdict) of all responses that were sampled for the batch.

    Means over the sampled responses of a training batch, without replayed responses:

    - `rollout/reward`: verdict, or graded reward, plus shaped terms; `rollout/reward_term/<name>`: one of the
      shaped terms.
    - `rollout/reward_part/<name>`: value of one of several reward functions, before its weight, over the
      responses to which it applies.
    - `rollout/correct`: share of correct responses; `rollout/{correct_original,correct_rephrasings}`: the
      same share among the responses to original questions, and among the responses to rephrasings.
    - `rollout/length`: tokens per response, including the stop token.
    - `rollout/truncated`: share of responses that the length limit ended.
    - `rollout/without_verdict`: share of responses without a verdict, which count as wrong, among all sampled
      responses, including discarded ones.
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
        "rollout/without_verdict": totals["spent_failed"] / totals["spent_rollouts"],
        "rollout/rephrasings": totals["rephrasings"] / totals["questions"],
    }
    if totals["tokens"]:  # zero only if an engine returned nothing but empty responses
        means["rollout/entropy"] = -totals["logprob"] / totals["tokens"]
    if originals:
        means["rollout/correct_original"] = totals["correct_original"] / originals
    if others:
        means["rollout/correct_rephrasings"] = (totals["correct"] - totals["correct_original"]) / others
    for name, total in totals.items():
        with_part = totals.get(f"with_{name}", 0.0)
        if name.startswith("reward_part/") and with_part:
            means[f"rollout/{name}"] = total / with_part
    return means | {
        f"rollout/{name}": sum_ / count for name, sum_ in totals.items() if name.startswith("reward_term/")
    }
