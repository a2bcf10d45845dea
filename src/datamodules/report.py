"""Report on the questions of a run, `data.json`: split → facts.

| fact | meaning | |---|---| | `origin` | file, name on the hub, or generator | | `read`, `kept` | rows read,
questions kept | | `fingerprint` | hash of the kept questions, rephrasings and answers; order is ignored
(`sources.base.fingerprint`) | | `excluded` | reason → ids of questions left out | | `notes`, `warnings` |
actions of the source, and differences from the expected content | | `rephrasings` | number of rephrasings →
questions that have this number | | `rephrasings_too_long` | number of rephrasings left out for their length |
| `rephrasings_unreadable` | number of rephrasings left out for control tokens that the tokenizer can't read
as text | | `prompt_tokens` | tokens per prompt: minimum, mean and maximum | | `train_overlap` | of a test
split: `overlap.Overlap`s with the training questions; missing if these were not loaded | | `digests` | of the
split `train`: `overlap.words_digest` of every question and rephrasing, joined in one string | |
`repeated_questions` | ids of questions with the same text, in lists | | `contradictions` | lists of repeated
questions that no single answer satisfies | | `control_tokens` | id → control tokens that the question or a
rephrasing spells; they are tokenised as text | | `hidden_characters` | id → characters of the question or a
rephrasing that readers can't see | | `reference_notes` | id → notes of the verifier on its reference answers
(`Verifier.reference_notes`) | | `sample_prompt` | template → prompt of the first question | | `cautions` |
the warnings that were given |
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ..types import QuestionGroup
from .hidden_text import control_marks, hidden_characters
from .overlap import find_overlaps, seen, words_digest
from .prompts import Fitting
from .sources.base import SourceReport, fingerprint, plain

NUM_NAMED = 5  # questions named in a message; the report names all
NUM_SHOWN = 3  # questions quoted in a message


def split_report(told: SourceReport, fitting: Fitting) -> dict[str, Any]:
    """Return the report on one split, from the source's report `told` and the kept questions `fitting`."""
    lengths = fitting.prompt_tokens
    repeated = repeated_questions(fitting.kept)
    return {
        "origin": told.origin,
        "read": told.read,
        "kept": len(fitting.kept),
        "fingerprint": fingerprint(fitting.kept),
        "excluded": {**told.excluded, "too_long": fitting.too_long},
        "notes": told.notes,
        "warnings": told.warnings,
        "rephrasings": dict(sorted(Counter(len(group.rephrasings) for group in fitting.kept).items())),
        "rephrasings_too_long": fitting.rephrasings_too_long,
        "rephrasings_unreadable": fitting.rephrasings_unreadable,
        "prompt_tokens": {"min": min(lengths), "mean": sum(lengths) / len(lengths), "max": max(lengths)},
        "repeated_questions": [[group.id for group in same] for same in repeated],
        "contradictions": [[group.id for group in same] for same in repeated if _contradict(same)],
        "control_tokens": _control_tokens(fitting),
        "hidden_characters": _hidden_characters(fitting.kept),
    }


def repeated_questions(groups: Sequence[QuestionGroup]) -> list[list[QuestionGroup]]:
    """Return lists of questions that have the same text (`sources.base.plain`)."""
    same: dict[str, list[QuestionGroup]] = defaultdict(list)
    for group in groups:
        same[plain(group.question)].append(group)
    return [found for found in same.values() if len(found) > 1]


def _contradict(same: Sequence[QuestionGroup]) -> bool:
    """Check whether no single spelling of an answer is accepted for all of these questions."""
    spellings = [set(map(plain, group.answer)) for group in same]
    return not set.intersection(*spellings)


def _control_tokens(fitting: Fitting) -> dict[str, list[str]]:
    """Return for each question id the control tokens that the question or its rephrasings spell.

    These are the control tokens of the tokenizer, and all published control tokens.
    """
    found = {}
    for group in fitting.kept:
        marks = dict.fromkeys(fitting.control_tokens.get(group.id, ()))
        for text in (group.question, *group.rephrasings):
            marks |= dict.fromkeys(control_marks(text))  # published ones
        if marks:
            found[group.id] = list(marks)
    return found


def _hidden_characters(groups: Sequence[QuestionGroup]) -> dict[str, list[str]]:
    found = {}
    for group in groups:
        names: dict[str, None] = {}
        for text in (group.question, *group.rephrasings):
            names |= dict.fromkeys(hidden_characters(text))
        if names:
            found[group.id] = list(names)
    return found


def summary(split: str, report: Mapping[str, Any]) -> str:
    """Describe a split in one sentence."""
    tokens = report["prompt_tokens"]
    return (
        f"{split}: {report['kept']} of {report['read']} questions; questions by number of rephrasings: "
        f"{report['rephrasings']}; prompt tokens: {tokens['min']} to {tokens['max']}, mean "
        f"{tokens['mean']:.0f}."
    )


def cautions(split: str, report: Mapping[str, Any], max_prompt_tokens: int) -> Iterator[str]:
    """Yield a sentence for everything that was left out of a split or is not as expected."""
    for reason, ids in report["excluded"].items():
        if ids and reason != "too_long":
            yield f"{split}: left out {len(ids)} questions ({reason}): {_named(ids)}."
    too_long = report["excluded"]["too_long"]
    dropped = report["rephrasings_too_long"]
    if too_long or dropped:
        yield (
            f"{split}: left out {len(too_long)} questions and {dropped} rephrasings longer than "
            f"{max_prompt_tokens} tokens, among them {_named(too_long) or 'no question'}."
        )
    dropped = report["rephrasings_unreadable"]
    if dropped:
        yield f"{split}: left out {dropped} rephrasings with control tokens that the tokenizer can't read as text."
    yield from (f"{split}: {warning}." for warning in report["warnings"])
    yield from _cautions_about_texts(split, report)


def _cautions_about_texts(split: str, report: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence each for repeated questions, contradictions, control tokens and hidden characters."""
    repeated = report["repeated_questions"]
    if repeated:
        several = _named([" = ".join(ids) for ids in repeated])
        yield f"{split}: {len(repeated)} questions are in the data more than once: {several}. Remove repetitions."
    contradictions = report["contradictions"]
    if contradictions:
        several = _named([" = ".join(ids) for ids in contradictions])
        yield f"{split}: {len(contradictions)} of them with different answers: {several}. Correct or remove them."
    spelled = report["control_tokens"]
    if spelled:
        tokens = _named(list(dict.fromkeys(chain.from_iterable(spelled.values()))))
        yield (
            f"{split}: {len(spelled)} questions or their rephrasings spell control tokens of chat templates "
            f"({tokens}), which are tokenised as text: {_named(list(spelled))}. Remove them if they are not "
            "meant."
        )
    hidden = report["hidden_characters"]
    if hidden:
        names = _named(list(dict.fromkeys(chain.from_iterable(hidden.values()))))
        yield (
            f"{split}: {len(hidden)} questions or their rephrasings have characters that readers can't see "
            f"({names}): {_named(list(hidden))}. Remove them if they are not meant."
        )


def caution_of_notes(split: str, notes: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a sentence that counts the references with each kind of note; nothing without notes."""
    if notes:
        kinds: Counter[str] = Counter()
        for of_question in notes.values():
            kinds.update(dict.fromkeys(of_question, 1))
        counted = ", ".join(f"{kind} ({count})" for kind, count in kinds.most_common())
        yield (
            f"{split}: {len(notes)} reference answers may accept other spellings than you expect: {counted}. "
            f"Look at {_named(list(notes))}; data.json lists all under reference_notes."
        )


def add_overlaps(
    reports: Mapping[str, dict[str, Any]], splits: Mapping[str, Sequence[QuestionGroup]]
) -> Iterator[tuple[str, str]]:
    """Add the digests of training questions, and their overlaps with test splits, to reports that lack them.

    Yields each split that has copies (overlaps with the same numbers), with a warning about them.
    """
    tests = {
        name: g for name, g in splits.items() if name != "train" and "train_overlap" not in reports[name]
    }
    if "train" not in splits or (not tests and "digests" in reports["train"]):
        return
    noted: set[str] = set()
    found = find_overlaps(splits["train"], tests, note=lambda text: noted.add(words_digest(text)))
    reports["train"]["digests"] = "".join(sorted(noted))
    for split, overlaps in found.items():
        reports[split]["train_overlap"] = [overlap._asdict() for overlap in overlaps]
        copies = [overlap for overlap in overlaps if overlap.same_numbers]
        if copies:
            questions = {group.id: group.question for group in splits[split]}
            text = (
                f"{split}: {len(copies)} of {len(splits[split])} questions share at least half of their "
                "words, and all numbers, with a training question: "
                f"{_named([f'{copy.test} ({copy.train})' for copy in copies])}. "
                f"{len(overlaps) - len(copies)} more share the words but not all numbers. Take such "
                f"questions out of data.train or data.evaluation.{split}, or read its results as those of "
                "seen questions."
            )
            yield split, _with_examples(text, [questions[copy.test] for copy in copies])


def of_seen(split: str, groups: Sequence[QuestionGroup], noted: str, run: Path) -> Iterator[str]:
    """Yield a warning if questions of a split are among the training questions of `run`.

    `noted` is the string of digests that the run has recorded.
    """
    copies = [group.question for group in seen(groups, noted)]
    if copies:
        yield _with_examples(
            f"{split}: this policy was trained on {len(copies)} of {len(groups)} questions, in {run}. Ask "
            f"others by data.evaluation.{split}, or read its results as those of seen questions.",
            copies,
        )


def _with_examples(text: str, questions: Sequence[str]) -> str:
    return "\n".join([f"{text} Some of them:", *(f"- {question!r}" for question in questions[:NUM_SHOWN])])


def _named(ids: Sequence[str]) -> str:
    return ", ".join(ids[:NUM_NAMED]) + (", …" if len(ids) > NUM_NAMED else "")
