"""Sampled responses → `Rollouts`: decoding, scores, reward terms, and the scalars logged of a batch."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import accumulate, chain, islice
from math import isfinite
from typing import Literal

import torch
from torch import Tensor

from ..rewards.response import ResponseParts, opens_thoughts, split_response, whole_response
from ..types import Completion, InvalidScoreError, QuestionBatch, RewardTerm, Rollouts, Score, Seconds, Step, Verifier
from ..types.checks import check_column, found, name_of, own_code

Decode = Callable[[list[Tensor]], list[str]]
"""[n] of [T] long → [n] texts without special tokens."""
SETTING = "rollout.verifier"
"""Setting that chooses the verifier."""
LARGEST_REWARD = 1e18
"""Largest absolute reward: sums of squares of larger ones overflow float32."""


Reads = Literal["answer", "response"]
"""Part of a response that a verifier gets: the answer, or all of the response."""
_Scored = tuple[str, ResponseParts, Score]
"""Text of a response, the parts that its verifier read, and the score."""


class Scoring:
    """Scoring of one batch, made before sampling so that workers can score while the engine samples.

    Verifiers get the answer of each response, without its thoughts (`split_response`). They get the whole response if
    `verifier_reads` is `response` or `Verifier.reads_response` is true. Texts are always whole.
    """

    def __init__(
        self, batch: QuestionBatch, verifier: Verifier, decode: Decode, verifier_reads: Reads = "answer"
    ) -> None:
        self.references = [batch.groups[prompt.question].answer for prompt in batch.prompts]
        self.opened = [opens_thoughts(prompt.text) for prompt in batch.prompts]
        self.verifier = verifier
        self.decode = decode
        self.reads_answer = verifier_reads == "answer" and not verifier.reads_response
        self._early: dict[int, tuple[list[str], list[ResponseParts], Callable[[], list[Score]]]] = {}

    def deliver(self, prompt: int, completions: list[Completion]) -> None:
        """Pass a prompt's responses to the verifier's workers, if it has any, and return at once."""
        if self.verifier.in_background:
            texts, parts = self._read([(prompt, completion) for completion in completions])
            answers = [part.answer for part in parts]
            with own_code(self.verifier, SETTING):
                wait = self.verifier.score_async(answers, [self.references[prompt]] * len(answers))
            self._early[prompt] = texts, parts, partial(checked_scores, self.verifier, len(answers), wait)

    def scored(self, completions: Sequence[Sequence[Completion]]) -> tuple[list[str], list[Score]]:
        """Return texts [R] and scores [R] of all responses, given as [P][G] by prompt, with steps counted in tokens.

        Responses that were delivered early are with the workers already; the others are scored now.

        Raises:
            ValueError: if the verifier has returned a step that is not a part of the text that it got.
        """
        early = [self._early.get(prompt, ([], [], list)) for prompt in range(len(completions))]
        # Replayed ones are late, too.
        late = [(p, c) for p, samples in enumerate(completions) for c in samples[len(early[p][0]) :]]
        texts, parts = self._read(late)
        answers = [part.answer for part in parts]
        references = [self.references[prompt] for prompt, _ in late]
        ask = partial(self.verifier.score_batch, answers, references)
        scores = checked_scores(self.verifier, len(answers), ask) if late else []
        others = iter(list(zip(texts, parts, scores, strict=True)))
        rows: list[_Scored] = []
        for samples, (delivered, read, wait) in zip(completions, early, strict=True):
            rows += zip(delivered, read, wait(), strict=True)
            rows += islice(others, len(samples) - len(delivered))
        scored = []
        for sample, (text, part, score) in zip(chain.from_iterable(completions), rows, strict=True):
            if score.steps:
                steps = in_tokens(in_response(score.steps, part), text, sample.token_ids, self.decode)
                score = score._replace(steps=steps)  # noqa: PLW2901
            scored.append(score)
        return [text for text, _, _ in rows], scored

    def _read(self, responses: Sequence[tuple[int, Completion]]) -> tuple[list[str], list[ResponseParts]]:
        """Return the texts of (row of the prompt, response) pairs, and the parts that the verifier reads."""
        if not responses:  # a tokenizer decodes an empty list to one text, and a rank may have no question
            return [], []
        texts = self.decode([completion.token_ids for _, completion in responses])
        if not self.reads_answer:
            return texts, [whole_response(text) for text in texts]
        parts = [
            split_response(text, opened=self.opened[prompt], truncated=completion.truncated)
            for text, (prompt, completion) in zip(texts, responses, strict=True)
        ]
        return texts, parts


def in_response(steps: Sequence[Step], parts: ResponseParts) -> list[Step]:
    """Convert steps from characters of what the verifier read, `parts.answer`, to characters of the response.

    Raises:
        ValueError: if a step has no character of the answer, or its value is not finite.
    """
    converted = []
    for start, end, value in steps:
        _check(Step(start, end, value), len(parts.answer))
        converted.append(Step(*parts.in_response(start, end), value))
    return converted


def _check(step: Step, length: int) -> None:
    if not (0 <= step.start < step.end <= length and isfinite(step.value)):
        raise ValueError(
            f"Expected steps within the {length} characters of a response and finite values, but the verifier "
            f"returned {step}. Correct its `Score.steps`."
        )


def checked_scores(verifier: Verifier, count: int, score: Callable[[], object]) -> list[Score]:
    """Call `score`, and check that the verifier has returned `count` scores.

    Raises:
        TypeError: if the verifier returns anything else, or builds a `Score` of invalid values.
        ValueError: if the verifier returns another number of scores.
        RuntimeError: if the verifier calls `sys.exit`.
    """
    expected = f"Expected {name_of(verifier)} ({SETTING}) to return a Score for each of {count} responses, but got"
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
    if len(scores) != count:
        raise ValueError(f"{expected} {len(scores)} scores.")
    return list(scores)


def in_tokens(steps: Sequence[Step], text: str, token_ids: Tensor, decode: Decode) -> list[Step]:
    """Convert steps of a response from characters of its `text` to tokens of `token_ids` [T].

    A token belongs to the step of its last character. A step that lies within one token gets that token. ValueError if
    a step has no character of the text, or its value is not finite.
    """
    pieces, counts = decode(list(token_ids.split(1))), range(1, len(token_ids) + 1)
    lengths = list(accumulate(map(len, pieces))) if "".join(pieces) == text else None

    @cache
    def characters(count: int) -> int:
        """Count the characters of the first `count` tokens; decode them unless single tokens join to `text`."""
        if lengths is not None or count == len(token_ids):
            return len(text) if lengths is None else lengths[count - 1]
        return len(decode([token_ids[:count]])[0].rstrip("\ufffd"))

    def tokens(position: int) -> int:
        """Count the tokens that end at or before `position`, without trailing tokens that have no text."""
        reached = bisect_right(counts, position, key=characters) if position else 0
        return 1 + bisect_left(counts, characters(reached), key=characters) if reached else 0

    converted = []
    for start, end, value in steps:
        _check(Step(start, end, value), len(text))
        first, last = tokens(start), tokens(end)
        if last <= first:
            first = bisect_left(counts, end, key=characters)
            last = first + 1
        converted.append(Step(first, last, float(value)))
    return converted


def assemble(
    batch: QuestionBatch,
    completions: Sequence[Sequence[Completion]],
    texts: Sequence[str],
    scores: Sequence[Score],
    staleness: int,
    seconds: Seconds,
) -> Rollouts:
    """Return the rollouts of `batch`, with rewards from verdicts alone.

    `completions` are [P][G], `texts` and `scores` [R]. `staleness` is the number of optimizer steps since the
    weights that sampled. `seconds` is shared, not copied: later phases of the iteration add their seconds.
    """
    flat = list(chain.from_iterable(completions))
    rows = torch.repeat_interleave(torch.tensor([len(samples) for samples in completions], dtype=torch.long))
    pairs = zip(batch.prompts, completions, strict=True)
    past = [sample is prompt.past for prompt, samples in pairs for sample in samples]
    correct = torch.tensor([score.correct for score in scores], dtype=torch.bool)
    return Rollouts(
        prompts=batch.prompts,
        prompt=rows,
        question=torch.tensor([p.question for p in batch.prompts], dtype=torch.long)[rows],
        rephrasing=torch.tensor([p.rephrasing for p in batch.prompts], dtype=torch.long)[rows],
        token_ids=[completion.token_ids for completion in flat],
        logprobs=[completion.logprobs for completion in flat],
        truncated=torch.tensor([completion.truncated for completion in flat], dtype=torch.bool),
        text=texts,
        correct=correct,
        answers=[score.answer for score in scores],
        rewards=correct.float(),
        replayed=torch.tensor(past, dtype=torch.bool),
        staleness=torch.full((len(flat),), staleness),
        steps=[score.steps for score in scores] if any(score.steps for score in scores) else None,
        seconds=seconds,
    )


def with_terms(rollouts: Rollouts, batch: QuestionBatch, terms: Mapping[str, RewardTerm]) -> Rollouts:
    """Add all `terms` to the rewards of the rollouts.

    Raises:
        TypeError: a term returns no tensor.
        ValueError: a term returns a tensor of another shape, or on another device than the CPU.
        FloatingPointError: a term, or the sum of all terms, is not finite or above `LARGEST_REWARD`.
        RuntimeError: a term calls `sys.exit`.
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
                f"Expected rollout.reward_terms.{name} to be at most {LARGEST_REWARD:g} in absolute value, but "
                f"{others} of {len(column)} are not: they would overflow float32. Lower the weight of the term."
            )
    return replace(rollouts, rewards=rewards, reward_terms=added)


def totals_of(batch: QuestionBatch) -> dict[str, float]:
    """Return sums over the responses that this rank has sampled, without replayed ones.

    The sums add up over ranks.
    """
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
    """Return the scalars to log of a batch.

    `totals` are sums of `totals_of` over all ranks, and the counts `sampled` and `failed` (no verdict).

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
