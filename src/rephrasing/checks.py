r"""Checks by text whether a rephrasing states the same problem as its question. Each verdict gives a reason.

These checks can refuse a good rephrasing, such as one that writes a condition in words, and accept a bad
rephrasing, such as one that asks for something else with the same numbers. `judge` consults a model instead.
"""

import re
from collections.abc import Collection

from ..rewards.canonical import normalize_answer
from .candidates import Check, Pair, Verdict
from .symbols import differences, symbols_kept
from .texts import compact, hidden_text, holds, loose_numbers, numbers, without_examples

_CHATTER = re.compile(
    r"\A\W*(?:sure|certainly|of course|here (?:is|are)|rephras|reworded|okay|the answer is|solution\b|question \d)",
    re.IGNORECASE,
)
_SOLVED = re.compile(
    r"\\boxed|####|\b(?:final )?answer\s*(?:is|=)\s*[-$\\\d]|\btherefore\b[^.]*=", re.IGNORECASE
)
_OVERRULES = re.compile(
    r"\b(?:ignore|disregard|forget|overlook)\b"
    r"(?=[^.?!\n]{0,60}\b(?:above|previous|preceding|prior|earlier|foregoing|original|system)\b)"
    r"(?=[^.?!\n]{0,60}\b(?:problem|question|instruction|prompt|task|message)s?\b)",
    re.IGNORECASE,
)
"""Order to ignore the preceding text: "ignore the problem above". Other orders are left to the judge."""


def special_tokens(tokenizer: str | None) -> frozenset[str]:
    """Return the special tokens of a tokenizer, for `well_formed`.

    Args:
        tokenizer: Folder or hub name of the tokenizer; None for no tokenizer.

    Raises:
        ValueError: if the tokenizer cannot be loaded.
    """
    if tokenizer is None:
        return frozenset()
    from transformers import AutoTokenizer  # takes seconds

    try:
        loaded = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False)
    except (OSError, ValueError) as error:
        said = " ".join(str(error).split())[:200]
        raise ValueError(
            f"Expected a tokenizer at {tokenizer}, but it cannot be loaded ({said}). "
            "Set `tokenizer` to the policy's folder or name, or to null."
        ) from error
    added = loaded.added_tokens_decoder.values()
    # A padding token of one letter or word, such as "!", occurs in any text.
    return frozenset(
        token.content for token in added if token.special and re.search(r"[<\[{|｜]", token.content)
    )


def well_formed(pair: Pair, control_tokens: Collection[str] = ()) -> Verdict:
    r"""Check that the rephrasing is a problem statement of similar length, without chatter or a solution.

    Braces and dollars must be balanced. The rephrasing must have 0.4 to 3 times as many characters as the
    original, or at most 200 characters. Hidden characters, control tokens and orders to ignore preceding text
    are refused.

    Args:
        pair: The question and its rephrasing.
        control_tokens: Control tokens of the policy's tokenizer. Published control tokens are always refused.

    >>> well_formed(Pair("What is $1+1$?", "Find $x+1$ if $x=1.")).reason
    'a dollar sign or brace without its partner'
    """
    text, share = pair.rephrasing, len(pair.rephrasing) / max(len(pair.question), 1)
    reason = ""
    if hidden := hidden_text(text, control_tokens):
        reason = f"holds {', '.join(hidden[:5])}"
    elif _OVERRULES.search(text) and not _OVERRULES.search(pair.question):
        reason = "tells its reader to ignore another text"
    elif _CHATTER.match(text) and not _CHATTER.match(pair.question):
        reason = f"comments instead of rephrasing: {text[:20]}"
    elif _SOLVED.search(text) and not _SOLVED.search(pair.question):
        reason = "holds a solution"
    elif _unpaired(text) and not _unpaired(pair.question):
        reason = "a dollar sign or brace without its partner"
    # Short questions may get long: the other checks find what is missing or added.
    elif share < 0.4 or (share > 3 and len(text) > 200):
        reason = f"{share:.1f} times as long as the original"
    return Verdict("well_formed", not reason, reason or "a problem statement", share)


def _unpaired(text: str) -> bool:
    text = re.sub(r"\\[\\$]", "", text)
    braces = re.sub(r"\\[{}]", "", text)
    # A single dollar sign is money.
    return (text.count("$") % 2 == 1 and text.count("$") > 1) or braces.count("{") != braces.count("}")


def numbers_kept(pair: Pair) -> Verdict:
    r"""Check that the rephrasing has exactly the numbers of the original.

    Numbers may be repeated, and may be written in digits or as words (`five`). Words such as `twice`, `half`
    and `each` may stand for a number of the other text. Numbers of an example (`For instance, …`) may be
    missing.

    >>> numbers_kept(Pair("Tom has 3 cats and buys 2.", "Tom, who had three cats, buys two more.")).reason
    'all 2 numbers kept'
    >>> numbers_kept(Pair("Tom has 3 cats and buys 2.", "Tom has 3 cats and buys 4.")).reason
    'missing: 2; new: 4'
    """
    old, new = pair.question, pair.rephrasing
    required, present = numbers(old), numbers(new)
    missing = numbers(without_examples(old, new)) - present - loose_numbers(new)
    found = differences(missing, present - required - loose_numbers(old))
    return Verdict("numbers_kept", not found, found or f"all {len(required)} numbers kept")


def answer_not_leaked(pair: Pair) -> Verdict:
    r"""Check that the rephrasing does not contain the reference answer, unless the original contains it too.

    >>> answer_not_leaked(Pair("What is $6 \cdot 7$?", r"Show that $6 \cdot 7$ is 42.", ("42",))).reason
    'the answer 42 is in it, and not in the original'
    >>> answer_not_leaked(Pair("Is 42 even? Say yes or no.", "Is 42 an even number, yes or no?", ("yes",))).passed
    True
    """
    for answer in pair.answer:
        normal = normalize_answer(answer)
        if normal and _holds(pair.rephrasing, normal) and not _holds(pair.question, normal):
            return Verdict(
                "answer_not_leaked", False, f"the answer {answer} is in it, and not in the original"
            )
    return Verdict("answer_not_leaked", True, "the answer is not in it, or in the original too")


def _holds(text: str, answer: str) -> bool:
    # The letter of a choice can't be told from a word.
    return answer in numbers(text) or (answer not in ("A", "I") and holds(text, compact(answer)))


def not_identical(pair: Pair) -> Verdict:
    r"""Check that the rephrasing differs from the original and the other rephrasings in words or their order.

    Line breaks and bullets count as words: a list differs from the same sentences in running text.

    >>> not_identical(Pair("Find $x$.", "Find  x!")).reason
    'the same words as the original'
    """
    others = {"the original": [pair.question], "another rephrasing": pair.others}
    same = [name for name, texts in others.items() if _words(pair.rephrasing) in map(_words, texts)]
    return Verdict("not_identical", not same, f"the same words as {same[0]}" if same else "other words")


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+(?:['’][a-z]+)?|\d+(?:\.\d+)?|\n+|^\s*[-*•]", text.lower(), re.MULTILINE)


_IN_ORDER = (well_formed, numbers_kept, symbols_kept, answer_not_leaked, not_identical)
TEXT_CHECKS: dict[str, Check] = {check.__name__: check for check in _IN_ORDER}
"""Name → check, as in `configs/rephrase.yaml`."""
