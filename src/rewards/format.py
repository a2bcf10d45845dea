r"""Whether a response keeps to the format that its template asks for (prompt augmentation, arXiv 2602.03190).

A marker earns its share if it occurs exactly once, wherever it stands; order and nesting are not checked. A template
that fills in the opening tag itself asks for the remaining three. Tags must survive decoding: a tokenizer that counts
`<think>` among its *special* tokens drops it from the text, and the reward with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_OPEN_R1 = ("<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>")
_DEEPSEEK_R1 = ("<think>", "</think>", "<answer>", "</answer>")
_REFLECTIVE = ("<solution>\n", "\n</solution>\n", "\n<check>\nLet's verify step by step", "\n</check>")
_STATED = ("The final answer is:",)


def format_reward(response: str, markers: Sequence[str]) -> float:
    r"""Share of the markers that occur exactly once: 0 … 1, and a constant 1 without markers.

    `response` is without the part of the turn that its template filled in.

    >>> tags = ("<think>", "</think>", "<answer>", "</answer>")
    >>> format_reward("<think>1 + 1</think> <answer>2</answer>", tags)
    1.0
    >>> format_reward("<think>1 + 1</think> no, <think>2</think> <answer>2", tags)  # only <answer> occurs once
    0.25
    >>> format_reward("anything", ())
    1.0
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
    # Explicit chain of thought, of which two announce the answer.
    "abel": (),
    "lm_eval_prompt1": _STATED,
    "lm_eval_prompt4": _STATED,
    "lm_eval_prompt8": (),
    # Free-form.
    "simplerl": (),
    "qwen-math": (),
    "formal": (),
}
"""Template name → its markers, for the 13 templates of prompt augmentation."""
