"""Reward terms, which are added to the verdict or graded reward before advantages are computed.

Pass@k does not count them. A term is a callable `(rollouts, groups) -> [R] float32`. It gets the responses of
one rank, which always has all responses to a question. Terms are chosen by name: `tagrpo-train
experiment=grpo 'reward_terms=[overlong,noise]'`; `tagrpo-train --help reward_terms` lists them.

The reward is verdict + Σ terms, or `Score.reward` + Σ terms for graded rewards. If a method's reward
*replaces* the verdict, its term is the difference: `RewardNoise` is +1 if a wrong response counts as right.
Terms do not depend on each other and have no state. Random terms are seeded, so that the same rollouts get
the same rewards after a resume.
"""

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..types import QuestionGroup, Rollouts

_OPEN_R1 = ("<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>")
_DEEPSEEK_R1 = ("<think>", "</think>", "<answer>", "</answer>")
_REFLECTIVE = ("<solution>\n", "\n</solution>\n", "\n<check>\nLet's verify step by step", "\n</check>")
MARKERS: Mapping[str, Sequence[str]] = {
    "open-r1": _OPEN_R1, "open-r1-teacher": _OPEN_R1[1:],  # DeepSeek's tags, each on a line of its own
    "deepseek-r1": _DEEPSEEK_R1, "deepseek-r1-teacher": _DEEPSEEK_R1[1:],
    "reflective_prompt": _REFLECTIVE, "reflective_prompt-teacher": _REFLECTIVE[1:],
    **dict.fromkeys(("lm_eval_prompt1", "lm_eval_prompt4"), ("The final answer is:",)),
    **dict.fromkeys(("abel", "lm_eval_prompt8", "simplerl", "qwen-math", "formal"), ()),  # ask for no format
}  # fmt: skip
"""Template name → its markers, for the 13 templates of prompt augmentation."""


def format_reward(response: str, markers: Sequence[str]) -> float:
    """Return the share of the markers that occur exactly once, in any order: 0 … 1, and 1 without markers.

    >>> format_reward("<think>1 + 1</think> no, <think>2</think> <answer>2", ("<think>", "</think>", "<answer>"))
    0.3333333333333333
    """
    return sum(response.count(marker) == 1 for marker in markers) / len(markers) if markers else 1.0


class TemplateFormatTerm:
    """Reward term weight · the format reward of a response's template (arXiv 2602.03190).

    The paper's code has weight 1. If a marker is a *special* token of the tokenizer, the marker is dropped
    from the text, and the response gets no reward for it; marks of thoughts (`<think>`) stay.

    Args:
        weight: Factor.
        markers: Template name → its markers (`format_reward`), in addition to the 13 templates of `MARKERS`,
            which entries with the same name replace. An empty list of markers means a constant 1.

    Raises:
        ValueError: if a marker is empty, or a response comes from a template that has no format reward.
    """

    def __init__(self, weight: float = 1.0, markers: Mapping[str, Sequence[str]] | None = None) -> None:
        self.weight = weight
        self.markers = {**MARKERS, **(markers or {})}
        empty = [name for name, texts in self.markers.items() if "" in texts]
        if empty:
            raise ValueError(
                f"Expected rollout.reward_terms.format.markers that are not empty, but {empty[0]} has an empty one."
            )

    def __call__(self, rollouts: Rollouts, groups: Sequence[QuestionGroup]) -> Tensor:  # noqa: ARG002
        """Return the weighted format reward of each response, [R] float32."""
        names = [rollouts.prompts[row].template for row in rollouts.prompt.tolist()]
        unknown = sorted(set(names) - set(self.markers))
        if unknown:
            raise ValueError(
                f"Expected a format reward for each template, but {', '.join(unknown)} has none; known are "
                f"{', '.join(self.markers)}. Name its markers in rollout.reward_terms.format.markers, [] for "
                "none."
            )
        values = [
            format_reward(text, self.markers[name]) for name, text in zip(names, rollouts.text, strict=True)
        ]
        return self.weight * torch.tensor(values)


class SoftOverlongPenalty:
    """Reward term weight · DAPO's soft overlong punishment of a response (arXiv 2503.14476, Eq. 13).

    The penalty is 0 up to L_max − L_cache tokens, then falls linearly to −1 at L_max, and is −1 beyond.

    Raises:
        ValueError: unless 0 < cache ≤ max_length.

    Args:
        max_length: L_max, tokens. DAPO's is the length limit of sampling, so that a truncated response gets
            −1.
        cache: L_cache, tokens. None is a fifth of `max_length`, DAPO's share (4,096 of 20,480).
        weight: Factor.
    """

    def __init__(self, max_length: int, cache: int | None = None, weight: float = 1.0) -> None:
        self.max_length = max_length
        self.cache = max(max_length // 5, 1) if cache is None else cache
        self.weight = weight
        if not 0 < self.cache <= max_length:
            raise ValueError(f"Expected 0 < cache ≤ max_length, but got {self.cache} and {max_length}.")

    def __call__(self, rollouts: Rollouts, groups: Sequence[QuestionGroup]) -> Tensor:  # noqa: ARG002
        """Return the weighted penalty of each response, [R] float32."""
        over = (self.max_length - self.cache - rollouts.lengths) / self.cache
        return self.weight * (over.clamp(-1.0, 0.0).float() + 0.0)  # no negative zero


class SignedReward:
    """Reward term −1 for wrong responses, so that the reward is ±1 (DAPO, arXiv 2503.14476, Eq. 7).

    DAPO's overlong penalty is weighed against this scale: a correct response at the length limit earns 0.
    """

    def __call__(self, rollouts: Rollouts, groups: Sequence[QuestionGroup]) -> Tensor:  # noqa: ARG002
        """Return −1 for wrong and 0 for correct responses, [R] float32."""
        return -(~rollouts.correct).float()


class RewardNoise:
    """Reward term of noise: with some probability, a *wrong* response earns +1, like a right response.

    The term is 0 for all other responses. It is the control experiment of Pass@k training (arXiv 2508.10751,
    Fig. 6a: 10, 30, 50 %). `correct` does not change. The random numbers depend only on `seed`, the questions
    and the response tokens, so that they are the same after a resume.

    Args:
        probability: Probability of a reward for each wrong response, 0 … 1.
        seed: Seed of the draws.

    Raises:
        ValueError: unless 0 ≤ probability ≤ 1.
    """

    def __init__(self, probability: float, seed: int = 0) -> None:
        if not 0 <= probability <= 1:
            raise ValueError(f"Expected a probability between 0 and 1, but got {probability}.")
        self.probability = probability
        self.seed = seed

    def __call__(self, rollouts: Rollouts, groups: Sequence[QuestionGroup]) -> Tensor:
        """Return 1 for wrong responses that earn a reward and 0 for all others, [R] float32."""
        digest = hashlib.blake2b(repr((self.seed, [group.id for group in groups])).encode(), digest_size=8)
        for ids in rollouts.token_ids:
            digest.update(repr(ids.tolist()).encode())
        generator = torch.Generator().manual_seed(int.from_bytes(digest.digest(), "little") % 2**63)
        draws = torch.rand(len(rollouts), generator=generator)
        return ((draws < self.probability) & ~rollouts.correct).float()
