r"""Whether a response keeps to the format that its template asks for (prompt augmentation, arXiv 2602.03190).

A marker earns its share if it occurs exactly once, wherever it stands; order and nesting are not checked. A template
that fills in the opening tag itself asks for the remaining three. Tags must survive decoding: a tokenizer that counts
`<think>` among its *special* tokens drops it from the text, and the reward with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_OPEN_R1 = ("<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>")
_DEEPSEEK_R1 = ("<think>", "</think>", "<answer>", "</answer>")
_REFLECTIVE = ("<solution>\n", "\n</solution>\n", "\n<check>\nLet's verify step by step", "\n</check>")
_STATED = ("The final answer is:",)


@dataclass(frozen=True)
class MarkerReward:
    r"""Share of the markers that occur exactly once: 0 … 1, and a constant 1 without markers.

    >>> reward = MarkerReward(("<think>", "</think>", "<answer>", "</answer>"))
    >>> reward("<think>1 + 1</think> <answer>2</answer>")
    1.0
    >>> reward("<think>1 + 1</think> no, <think>2</think> <answer>2")  # only <answer> occurs once
    0.25
    >>> MarkerReward()("anything")
    1.0
    """

    markers: tuple[str, ...] = ()
    """Texts to look for, none of which is empty."""

    def __post_init__(self) -> None:
        if "" in self.markers:
            raise ValueError(f"Expected markers that are not empty, but got {self.markers!r}.")

    def __call__(self, response: str) -> float:
        """The share for one response, without the part of the turn that its template filled in."""
        if not self.markers:
            return 1.0
        return sum(response.count(marker) == 1 for marker in self.markers) / len(self.markers)


FORMAT_REWARDS: Mapping[str, MarkerReward] = {
    # DeepSeek: reasoning and answer in tags; open-r1 wants each tag on a line of its own.
    "open-r1": MarkerReward(_OPEN_R1),
    "open-r1-teacher": MarkerReward(_OPEN_R1[1:]),
    "deepseek-r1": MarkerReward(_DEEPSEEK_R1),
    "deepseek-r1-teacher": MarkerReward(_DEEPSEEK_R1[1:]),
    # Reflection: a solution, then a check of it.
    "reflective_prompt": MarkerReward(_REFLECTIVE),
    "reflective_prompt-teacher": MarkerReward(_REFLECTIVE[1:]),
    # Explicit chain of thought, of which two announce the answer.
    "abel": MarkerReward(),
    "lm_eval_prompt1": MarkerReward(_STATED),
    "lm_eval_prompt4": MarkerReward(_STATED),
    "lm_eval_prompt8": MarkerReward(),
    # Free-form.
    "simplerl": MarkerReward(),
    "qwen-math": MarkerReward(),
    "formal": MarkerReward(),
}
"""Template name → its format reward, for the 13 templates of prompt augmentation."""
