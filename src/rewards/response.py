r"""Parts of a response: the thoughts of a reasoning model, and the answer after them.

Responses are untrusted: they may be megabytes long and contain marks in any order. No function here raises on
responses. The cost is proportional to the length.
"""

import re
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

THOUGHT_TAGS = (
    # DeepSeek-R1, Qwen3, QwQ, GLM-4.5, MiniMax-M2, Nemotron, SmolLM3, Granite 3.3, ERNIE, Hunyuan, Olmo 3, …
    "think",
    r"think:[^\s<>]{1,40}",  # Hunyuan 4: a suffix of its own in each vocabulary
    "think_fast",  # K2-V2
    "think_faster",
    "thinking",  # prompts in the manner of Claude's, Reflection
    "thought",  # EXAONE Deep, Marco-o1
    "thoughts",
    "reasoning",  # GRPO notebooks
    "seed:think",  # Seed-OSS
    "mm:think",  # MiniMax-M3
    "longcat_think",  # LongCat
    "scratchpad",
    "analysis",  # prompts in the manner of Claude's
    "reflection",  # Reflection
)
"""Names of tags around thoughts: `<think>` … `</think>`, in upper or lower case, also `<|think|>`."""

THOUGHT_MARKS = {
    "mistral": (r"\[THINK\]", r"\[/THINK\]"),  # Magistral
    "kimi": ("◁think▷", "◁/think▷"),  # Kimi-VL, Kimi k1.5
    "open_thoughts": (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),  # OpenThinker, Sky-T1
    "cohere": (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),  # Command A Reasoning
    "medgemma": (r"<unused94>thought\b", "<unused95>"),
    "gemma": (r"<\|channel>thought\b", r"<channel\|>"),  # Gemma 4
    "unsloth": ("<start_working_out>", "<end_working_out>"),  # GRPO notebooks for Gemma 3
    "s1": (r"<\|im_start\|>think\b", r"(?:<\|im_end\|>\s*)?<\|im_start\|>answer\b"),
    "solar": (  # Solar Open
        r"<\|think\|>",
        r"<\|/think\|>|(?:<\|end\|>\s*)?(?:<\|begin\|>assistant)?<\|content\|>",
    ),
    "apriel": (None, r"\[BEGIN FINAL RESPONSE\]"),
    # gpt-oss (harmony): messages in channels, of which `final` is the answer …
    "harmony": (
        r"(?:<\|start\|>assistant)?<\|channel\|>(?:analysis|commentary)[^<\n]{0,200}"
        r"(?:<\|constrain\|>[^<\n]{0,40})?<\|message\|>",
        r"(?:<\|end\|>\s*)?(?:<\|start\|>assistant)?<\|channel\|>final[^<\n]{0,40}"
        r"(?:<\|constrain\|>[^<\n]{0,40})?<\|message\|>",
    ),
    # … and what is left of them when special tokens are dropped.
    "harmony_text": (r"\Aanalysis(?=[A-Z])", "assistantfinal"),
}
"""Model family → regular expressions of the marks around its thoughts, besides `THOUGHT_TAGS`."""

MATCHED_MARKS = {
    "harmony": (None, r"<\|(?:end|call)\|>"),
    "apriel": (r"(?m:^)Here are my reasoning steps:", None),
    "granite": (
        r"(?m:^)Here(?: is|'s) my thought process:",  # Granite 3.2
        r"(?m:^)Here(?: is|'s) my response:",
    ),
}
"""Marks as in `THOUGHT_MARKS` that other models write too, and that count only in pairs."""

ANSWER_TAGS = ("answer", "final_answer", "response", "output", "solution")
"""Names of tags around the answer; the tags stay in the answer."""
ANSWER_MARKS = (
    (r"<\|begin_of_solution\|>", r"<\|end_of_solution\|>"),
    (r"<\|START_RESPONSE\|>", r"<\|END_RESPONSE\|>"),
    (None, r"\[END FINAL RESPONSE\]"),  # Apriel
    (None, r"<\|return\|>"),  # gpt-oss
)
"""Regular expressions of other marks before and after the answer."""

_MARK_PARTS = (
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|channel>",
    "<channel|>",
    "<unused94>",
)
"""Special tokens that are marks of thoughts, or with which such marks begin."""
_MENTION = re.compile(
    r"\b(?:a|after|an|and|any|before|between|by|from|in|like|my|need|no|not|of|omit|or|skip|tags?|the|this|to|token"
    r"|type|use|used|using|via|with|without|write|wrote|your)\Z",
    re.IGNORECASE,
)
"""Words before a mark that show that a sentence mentions the mark: "I use no <think>"."""
_LONGEST_MENTION = 16
_ROLES = {"begin": "open", "finish": "close"}
"""Role of a mark of `MATCHED_MARKS` → role of a mark of `THOUGHT_MARKS`."""


class _Mark(NamedTuple):
    start: int
    end: int
    kind: str
    role: str
    """`open`, `close` (thoughts), `answer` or `end` (an answer); before pairing also `begin`, `finish`."""
    begins: bool
    """Whether a line or a sentence begins with the mark."""
    mentioned: bool
    """Whether the word before the mark shows that a sentence mentions the mark."""


class _Thought(NamedTuple):
    start: int
    """Start of the opening mark; without an opening mark, the end of the previous thought, or 0."""
    inner: tuple[int, int]
    """Range of the thought's text, without marks."""
    end: int


@dataclass(frozen=True)
class ResponseParts:
    """Parts of a response."""

    thoughts: str
    """Text within marks of thoughts, without these marks; several thoughts are joined by line breaks."""
    answer: str
    """Rest of the response, stripped, or the whole response if it has no thoughts.

    Marks around an answer (`<answer>`) stay in the answer."""
    finished: bool
    """False if the response ends within its thoughts."""


def split_response(text: str, *, opened: bool = False, truncated: bool = False) -> ResponseParts:
    r"""Split a response into thoughts and answer, by the marks of public models.

    - Text between an opening and a closing mark is a thought. Marks of the same kind may be nested.
    - Text before a closing mark without an opening one is a thought: templates put the opening mark into the
      prompt.
    - An opening mark that is never closed begins a truncated thought, unless a sentence mentions the mark ("I
      need no <think> here"): then the mark is an ordinary word.
    - Marks in quotes, backticks or parentheses are ordinary words, too, as is a lone closing mark before
      punctuation or within a sentence that mentions the mark.
    - A closing mark after thoughts that were opened and closed is dropped, and ends no thought.
    - A thought without a closing mark ends before an `<answer>` that is closed or begins a line.

    Args:
        text: The response.
        opened: Whether the prompt ended with an opening mark (`opens_thoughts`).
        truncated: Whether the length limit ended the response. With `opened`, a truncated response without
            any closing mark is a truncated thought; a complete response without a closing mark is an answer
            without thoughts.

    >>> split_response(r"<think>Try \boxed{4}</think> The answer is 5.")
    ResponseParts(thoughts='Try \\boxed{4}', answer='The answer is 5.', finished=True)
    >>> split_response("Try 4.</think>It is 5.").answer, split_response("<think>Perhaps 4. Let me").finished
    ('It is 5.', False)
    """
    marks = _marks(text)
    if not marks and not (opened and truncated):
        return ResponseParts("", text, True)
    thoughts, finished = _thoughts(text, marks, opened, truncated)
    if not thoughts:
        return ResponseParts("", text, True)
    outer = []
    position = 0
    for thought in thoughts:
        outer.append(text[position : thought.start].strip())
        position = thought.end
    outer.append(text[position:].strip())
    inner = [text[slice(*thought.inner)].strip() for thought in thoughts]
    return ResponseParts(
        thoughts="\n".join(filter(None, inner)), answer="\n".join(filter(None, outer)), finished=finished
    )


def opens_thoughts(prompt: str) -> bool:
    r"""Check whether a prompt ends within a thought, which the response continues.

    The last mark of the prompt must be an opening mark, at the prompt's end or before the beginning of an
    assistant's turn.

    >>> [opens_thoughts(prompt) for prompt in ("1 + 1? <think>\n", "1 + 1? <think>\n\n</think>\n\n", "1 + 1?")]
    [True, False, False]
    """
    marks = [mark for mark in _marks(prompt, pairs=False) if mark.role in ("open", "close")]
    if not marks or marks[-1].role == "close":
        return False
    behind = prompt[marks[-1].end :]
    return not behind.strip() or (marks[-1].begins and not _TURN.search(behind))


def is_mark(token: str) -> bool:
    """Check whether a special token begins or ends thoughts, alone or as a part of a mark.

    Decoded texts must keep such tokens, since they show where the answer is.

    >>> is_mark("[THINK]"), is_mark("<|channel|>"), is_mark("<|im_end|>")
    (True, True, False)
    """
    found = _MARK.fullmatch(token)
    return token in _MARK_PARTS or (found is not None and str(found.lastgroup).startswith(("open", "close")))


def opening_marks(text: str) -> list[str]:
    r"""Return the marks in a text that open thoughts, as spelled and in order.

    >>> opening_marks("<think>\n</think>[THINK]")
    ['<think>', '[THINK]']
    """
    return [text[mark.start : mark.end].strip() for mark in _marks(text, pairs=False) if mark.role == "open"]


PAGE_BREAK = "\f"
"""Character that replaces a mark around an answer; no formula extends across it."""


def without_answer_marks(answer: str) -> str:
    """Replace marks around answers (`<answer>`, `</answer>`, …) by line breaks around a page break."""
    return _ANSWER.sub(f"\n{PAGE_BREAK}\n", answer) if "<" in answer or "[" in answer else answer


def last_answer_block(answer: str) -> str | None:
    """Return the text in the last complete pair of answer marks, stripped.

    Returns None if there is no such pair, or if the text is empty.
    """
    start: int | None = None
    found = None
    for mark in _ANSWER.finditer(answer):
        if mark.lastgroup == "answer":
            start = mark.end()
        elif start is not None:
            found = answer[start : mark.start()].strip() or found
            start = None
    return found


def _alternatives(patterns: list[str]) -> str:
    return "|".join(f"(?:{pattern})" for pattern in patterns)


def _compiled() -> tuple[re.Pattern[str], re.Pattern[str]]:
    tags = "|".join(THOUGHT_TAGS)
    answers = "|".join(ANSWER_TAGS)
    named: dict[str, str] = {}
    for roles, marks in (("open", "close"), THOUGHT_MARKS), (("begin", "finish"), MATCHED_MARKS):
        for kind, patterns in marks.items():
            named |= {
                f"{role}_{kind}": pattern for role, pattern in zip(roles, patterns, strict=True) if pattern
            }
    named |= {
        "open": rf"(?i:<[ ]?(?:{tags})[ ]?>|<\|(?:{tags})\|>)",
        "close": rf"(?i:<[ ]?/[ ]?(?:{tags})[ ]?>|<\|?/(?:{tags})\|>)",
    }
    around = {
        "answer": _alternatives([f"(?i:<(?:{answers})>)", *(begin for begin, _ in ANSWER_MARKS if begin)]),
        "end": _alternatives([f"(?i:</(?:{answers})>)", *(end for _, end in ANSWER_MARKS)]),
    }
    every = f"(?=[<\\[◁aH])(?:{_named(named | around)})"
    return re.compile(every), re.compile(_named(around))


def _named(patterns: dict[str, str]) -> str:
    return "|".join(f"(?P<{name}>{pattern})" for name, pattern in patterns.items())


_MARK, _ANSWER = _compiled()
_HINTS = (
    "[THINK]",
    "[/THINK]",
    "◁",
    " FINAL RESPONSE]",
    "assistantfinal",
    " my response:",
    " reasoning steps:",
)
_TAG = re.compile(r"<[/|A-Za-z]|< [/A-Za-z]")
"""Beginning of every mark that has no hint, except `analysis`."""
_TURN = re.compile(r"<[|｜]|\[/INST\]|</s>|<(?:start|end)_of_turn>")
"""Marks of the turns of a conversation."""
_QUOTES = {"`": "`", "'": "'", '"': '"', "“": "”", "‘": "’", "«": "»", "(": ")"}
_PUNCTUATION = tuple(".,;:!?)")


def _marks(text: str, *, pairs: bool = True) -> list[_Mark]:
    """Return the unquoted marks of a text in order; with `pairs`, those of `MATCHED_MARKS` only in pairs."""
    if (
        not any(hint in text for hint in _HINTS)
        and not ("<" in text and _TAG.search(text))
        and not text.startswith("analysis")
    ):
        return []  # as in most responses, many times faster
    found = []
    before = 0
    for match in _MARK.finditer(text):
        start, end = match.span()
        gap = text[before:start].rstrip(" \t*_")
        mentioned = gap[-1:] == "(" or _MENTION.search(gap[-_LONGEST_MENTION:]) is not None
        before = end
        if start and end < len(text) and _QUOTES.get(text[start - 1]) == text[end]:
            continue
        role, _, kind = str(match.lastgroup).partition("_")
        kind = kind or match[0].strip("</| >").lower()
        found.append(_Mark(start, end, kind, role, not gap or gap[-1] in "\n\r.!?:;…。", mentioned))
    return (
        _paired(found) if pairs else [mark._replace(role=_ROLES.get(mark.role, mark.role)) for mark in found]
    )


def _paired(marks: list[_Mark]) -> list[_Mark]:
    """Return the marks that count; `begin` and `finish` become `open` and `close` if they are paired."""
    last_closing = {mark.kind: mark.start for mark in marks if mark.role in ("finish", "close")}
    begun: set[str] = set()
    found = []
    for mark in marks:
        if mark.role == "begin" and last_closing.get(mark.kind, -1) < mark.start:
            continue
        if mark.role == "finish" and mark.kind not in begun:
            continue
        if mark.role in ("begin", "open"):
            begun.add(mark.kind)
        elif mark.role in ("finish", "close"):
            begun.discard(mark.kind)
        found.append(mark._replace(role=_ROLES.get(mark.role, mark.role)))
    return found


def _thoughts(text: str, marks: list[_Mark], opened: bool, truncated: bool) -> tuple[list[_Thought], bool]:
    """Return the thoughts of a text in order, and whether the last of them is complete."""
    last_close = {mark.kind: place for place, mark in enumerate(marks) if mark.role == "close"}
    last_lone = _last_lone_close(marks)
    thoughts: list[_Thought] = []
    last_character = len(text.rstrip())
    answered = opened  # whether the first thought was opened, so that its end is known
    pending: int | None = None  # where an opening mark stands that a mark of another kind will close
    place = 0
    while place < len(marks):
        mark = marks[place]
        if mark.role == "open" and last_close.get(mark.kind, -1) > place:
            place = _closing(marks, place, last_close[mark.kind])
            closing = marks[place]
            start = mark.start if pending is None else pending
            inner = mark.end if pending is None else pending
            if opened and not thoughts:
                start = inner = 0
            thoughts.append(_Thought(start, (inner, closing.start), closing.end))
            answered = True
            pending = None if pending is None else closing.end
        elif mark.role == "open" and _opens_alone(text, mark):
            if place > last_lone:
                return _cut(text, marks, thoughts, (mark.start, mark.end))
            pending = mark.start if pending is None else pending
        elif mark.role == "close" and _closes_alone(text, mark, opened and not thoughts):
            start = thoughts[-1].end if thoughts else 0
            if thoughts and pending is None and (answered or mark.end >= last_character):
                start = mark.start  # the answer has begun: a mark too many
            thoughts.append(_Thought(start, (start, mark.start), mark.end))
            pending = None
        place += 1
    if opened and truncated and not thoughts:
        return _cut(text, marks, thoughts, (0, 0))
    return thoughts, True


def _cut(
    text: str, marks: list[_Mark], thoughts: list[_Thought], opening: tuple[int, int]
) -> tuple[list[_Thought], bool]:
    """Add a thought without a closing mark; it ends before an answer in marks or at the end of the text."""
    start, inner = opening
    block = _answer_block(text, marks, inner)
    if block is None:
        return [*thoughts, _Thought(start, (inner, len(text)), len(text))], False
    thoughts.append(_Thought(start, (inner, block[0]), block[0]))
    if text[block[1] :].strip():
        thoughts.append(_Thought(block[1], (block[1], len(text)), len(text)))
    return thoughts, True


def _last_lone_close(marks: list[_Mark]) -> int:
    """Return the place of the last closing mark without an opening mark of its kind, or −1."""
    depth: Counter[str] = Counter()
    last = -1
    for place, mark in enumerate(marks):
        if mark.role == "open":
            depth[mark.kind] += 1
        elif mark.role == "close" and depth[mark.kind]:
            depth[mark.kind] -= 1
        elif mark.role == "close":
            last = place
    return last


def _closing(marks: list[_Mark], place: int, last: int) -> int:
    """Return the place of the mark that closes the opening mark at `place`, at most `last`."""
    kind = marks[place].kind
    depth = 0
    for number in range(place, last):
        if marks[number].kind == kind:
            depth += {"open": 1, "close": -1}.get(marks[number].role, 0)
            if not depth:
                return number
    return last


def _closes_alone(text: str, mark: _Mark, opened: bool) -> bool:
    if opened:
        return True
    following = text[mark.end : mark.end + 2]
    if following.startswith(_PUNCTUATION):
        return False
    return not (mark.mentioned and following[:1] == " " and following[1:].islower())


def _opens_alone(text: str, mark: _Mark) -> bool:
    following = text[mark.end : mark.end + 1]
    if mark.begins:
        return True
    return not (following in ("", *"\"'`", *_PUNCTUATION) or (mark.mentioned and following.isspace()))


def _answer_block(text: str, marks: list[_Mark], after: int) -> tuple[int, int] | None:
    """Return the range of the last answer in marks from `after` on that is closed or begins a line."""
    found = None
    begin: _Mark | None = None
    for mark in marks:
        if mark.start < after:
            continue
        if mark.role == "answer":
            begin = mark
        elif mark.role == "close" or (mark.role == "open" and _opens_alone(text, mark)):
            begin = None  # with a thought within, it is no answer
        elif mark.role == "end" and begin is not None:
            if text[begin.end : mark.start].strip():
                found = (begin.start, mark.end)
            begin = None
    if begin is not None and begin.begins and text[begin.end :].strip():
        return begin.start, len(text)
    return found
