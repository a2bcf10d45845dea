r"""Whether a rephrasing is still the same problem, as far as its text shows. Each check gives a verdict with a reason.

These checks can refuse a good rephrasing (one that writes a condition in words) and accept a bad one (that asks for
something else with the same numbers). `judge` asks a model instead.
"""

from __future__ import annotations

import re
from collections import Counter
from difflib import SequenceMatcher

from ..rewards.extraction import normalize_answer
from .candidates import Check, Pair, Verdict
from .symbols import differences, symbols_kept
from .texts import compact, holds, loose_numbers, numbers, without_examples

_CHATTER = re.compile(
    r"\A\W*(?:sure|certainly|of course|here (?:is|are)|rephras|reworded|okay|the answer is|solution\b|question \d)",
    re.IGNORECASE,
)
_TOKEN = re.compile(r"[a-z]+(?:['’][a-z]+)?|\d+(?:\.\d+)?|\n+|^\s*[-*•]", re.MULTILINE)
_SOLVED = re.compile(r"\\boxed|####|\b(?:final )?answer\s*(?:is|=)\s*[-$\\\d]|\btherefore\b[^.]*=", re.IGNORECASE)


def well_formed(pair: Pair, shortest: float = 0.4, longest: float = 3.0) -> Verdict:
    r"""Is it a problem statement at all: no chatter, no solution, brackets and dollars in pairs, of similar length.

    `shortest` and `longest` are shares of the original's characters; texts below 200 may be longer.

    >>> well_formed(Pair("What is $1+1$?", "Sure! Here it is: what is $1+1$?")).reason
    'comments instead of rephrasing: Sure! Here it is: wh'
    >>> well_formed(Pair("What is $1+1$?", "Find $x+1$ if $x=1.")).reason
    'a dollar sign or brace without its partner'
    """
    text, share = pair.rephrasing, len(pair.rephrasing) / max(len(pair.question), 1)
    reason = ""
    if _CHATTER.match(text) and not _CHATTER.match(pair.question):
        reason = f"comments instead of rephrasing: {text[:20]}"
    elif _SOLVED.search(text) and not _SOLVED.search(pair.question):
        reason = "holds a solution"
    elif _unpaired(text) and not _unpaired(pair.question):
        reason = "a dollar sign or brace without its partner"
    # Short questions may be told at length: what is missing or added shows in the other checks.
    elif not shortest <= share or (share > longest and len(text) > 200):
        reason = f"{share:.1f} times as long as the original"
    return Verdict("well_formed", not reason, reason or "a problem statement", share)


def _unpaired(text: str) -> bool:
    text = re.sub(r"\\[\\$]", "", text)
    braces = re.sub(r"\\[{}]", "", text)
    # A single dollar sign is money.
    return (text.count("$") % 2 == 1 and text.count("$") > 1) or braces.count("{") != braces.count("}")


def numbers_kept(pair: Pair) -> Verdict:
    r"""Every number of the original is in the rephrasing, and no other.

    Compares which numbers there are, not how often, in digits or as words (`five`); words such as `twice`, `half` and
    `each` may stand for a number of the other text. Of an example (`For instance, …`) some may be missing.

    >>> numbers_kept(Pair("Tom has 3 cats and buys 2.", "Tom, who had three cats, buys two more."))
    Verdict(check='numbers_kept', passed=True, reason='all 2 numbers kept', value=None)
    >>> numbers_kept(Pair("Tom has 3 cats and buys 2.", "Tom has 3 cats and buys 4.")).reason
    'missing: 2; new: 4'
    """
    old, new = pair.question, pair.rephrasing
    required, present = numbers(old), numbers(new)
    missing = numbers(without_examples(old, new)) - present - loose_numbers(new)
    found = differences(missing, present - required - loose_numbers(old))
    return Verdict("numbers_kept", not found, found or f"all {len(required)} numbers kept")


def answer_not_leaked(pair: Pair) -> Verdict:
    r"""The reference answer is not in the rephrasing, unless the original has it too.

    >>> answer_not_leaked(Pair("What is $6 \cdot 7$?", r"Show that $6 \cdot 7$ is 42.", ("42",))).reason
    'the answer 42 is in it, and not in the original'
    >>> answer_not_leaked(Pair("Is 42 even? Say yes or no.", "Is 42 an even number, yes or no?", ("yes",))).passed
    True
    """
    for answer in pair.answer:
        normal = normalize_answer(answer)
        if normal and _holds(pair.rephrasing, normal) and not _holds(pair.question, normal):
            return Verdict("answer_not_leaked", False, f"the answer {answer} is in it, and not in the original")
    return Verdict("answer_not_leaked", True, "the answer is not in it, or in the original too")


def _holds(text: str, answer: str) -> bool:
    # The letter of a choice can't be told from a word.
    return answer in numbers(text) or (answer not in ("A", "I") and holds(text, compact(answer)))


def not_identical(pair: Pair, highest: float = 0.97) -> Verdict:
    """It is not the original or another rephrasing with a `sequence_similarity` above `highest`.

    Other names for people or variables are a difference, however few the words, where a name is replaced everywhere.

    >>> not_identical(Pair("Find $x$.", "Find  x!"))
    Verdict(check='not_identical', passed=False, reason='the same words as the original', value=1.0)
    """
    others = {pair.question: "the original", **dict.fromkeys(pair.others, "another rephrasing")}
    value, name, text = max((sequence_similarity(text, pair.rephrasing), name, text) for text, name in others.items())
    if value > highest and not _renamed(text, pair.rephrasing):
        how = "the same words as" if value == 1 else f"nearly the words of ({value:.3f})"
        return Verdict("not_identical", False, f"{how} {name}", value)
    return Verdict("not_identical", True, f"differs from {name} ({value:.3f})", value)


def _renamed(first: str, second: str) -> bool:
    """Whether words that are missing in the second text, all of them names, have others everywhere in their place."""
    old, new = (Counter(re.findall(r"[A-Za-z]+", text)) for text in (first, second))
    lost, gained = old - new, new - old
    replaced = not lost.keys() & new.keys() and not gained.keys() & old.keys()
    names = all(word[0].isupper() or len(word) == 1 for word in (*lost, *gained))
    return bool(lost) and names and replaced and sorted(lost.values()) == sorted(gained.values())


def sequence_similarity(first: str, second: str) -> float:
    r"""How much of two texts is the same words in the same order, 0..1: twice the matched words over all words.

    Line breaks and bullets count as words: a list is another text than its sentences in a row.

    >>> sequence_similarity("Tom has 3 cats", "Tom has 3 dogs"), sequence_similarity("What is $x$?", "what is x")
    (0.75, 1.0)
    >>> sequence_similarity("Tom runs. Eva walks.", "- Tom runs.\n- Eva walks.")  # 4 of 4 and 7
    0.7272727272727273
    """
    a, b = (_TOKEN.findall(text.lower()) for text in (first, second))
    return SequenceMatcher(None, a, b, autojunk=len(b) > 2000).ratio()


def ngram_similarity(first: str, second: str, n: int = 3) -> float:
    """Dice coefficient of the character n-grams of two texts, 0..1; order matters only within n characters.

    >>> round(ngram_similarity("abcd", "abce"), 3)  # of the trigrams abc, bcd and abc, bce one is shared
    0.5
    """
    lines = (" ".join(text.lower().split()) for text in (first, second))
    a, b = (Counter(line[i : i + n] for i in range(max(len(line) - n + 1, 1))) for line in lines)
    return 2 * (a & b).total() / (a.total() + b.total())


def similar(pair: Pair, low: float = 0.1, high: float = 1.0) -> Verdict:
    """Its `ngram_similarity` to the original is from `low` to `high`; questions of less than 40 characters may differ.

    >>> similar(Pair("What is the sum of the two numbers 2 and 3?", "A bird sings."), low=0.3)
    Verdict(check='similar', passed=False, reason='similarity 0.000 is below 0.3', value=0.0)
    """
    value = ngram_similarity(pair.question, pair.rephrasing)
    below = value < low and len(pair.question) >= 40
    bound = f" is below {low:g}" if below else f" is above {high:g}" if value > high else ""
    return Verdict("similar", not bound, f"similarity {value:.3f}{bound}", value)


TEXT_CHECKS: dict[str, Check] = {
    "well_formed": well_formed,
    "numbers_kept": numbers_kept,
    "symbols_kept": symbols_kept,
    "answer_not_leaked": answer_not_leaked,
    "not_identical": not_identical,
    "similarity": similar,
}
"""name → check, with the settings that need neither a model nor an encoder."""
