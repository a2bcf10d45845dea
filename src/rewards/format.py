r"""Whether a response keeps to the format that its template asks for (prompt augmentation, arXiv 2602.03190).

A template that fills in the opening tag itself asks for the remaining three. Tags must survive decoding: a tokenizer
that counts `<think>` among its *special* tokens drops it from the text, and the reward with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_OPEN_R1 = ("<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>")
_DEEPSEEK_R1 = ("<think>", "</think>", "<answer>", "</answer>")
_REFLECTIVE = ("<solution>\n", "\n</solution>\n", "\n<check>\nLet's verify step by step", "\n</check>")
_STATED = ("The final answer is:",)


def format_reward(response: str, markers: Sequence[str]) -> float:
    """Share of the markers that occur exactly once, in whatever order: 0 … 1, and a constant 1 without markers.

    >>> format_reward("<think>1 + 1</think> no, <think>2</think> <answer>2", ("<think>", "</think>", "<answer>"))
    0.3333333333333333
    """
    return sum(response.count(marker) == 1 for marker in markers) / len(markers) if markers else 1.0


MARKERS: Mapping[str, Sequence[str]] = {
    # DeepSeek: reasoning and answer in tags; open-r1 wants each tag on a line of its own.
    "open-r1": _OPEN_R1,
    "open-r1-teacher": _OPEN_R1[1:],
    "deepseek-r1": _DEEPSEEK_R1,
    "deepseek-r1-teacher": _DEEPSEEK_R1[1:],
    # Reflection: a solution, then a check of it.
    "reflective_prompt": _REFLECTIVE,
    "reflective_prompt-teacher": _REFLECTIVE[1:],
    # Explicit chains of thought that announce the answer.
    "lm_eval_prompt1": _STATED,
    "lm_eval_prompt4": _STATED,
    # The others ask for no format.
    **dict.fromkeys(("abel", "lm_eval_prompt8", "simplerl", "qwen-math", "formal"), ()),
}
"""Template name → its markers, for the 13 templates of prompt augmentation."""
