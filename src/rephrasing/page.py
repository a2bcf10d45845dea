"""The sample that a human reads: one self-contained HTML page, with changes marked and a place for each judgement."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path
from string import Template

from .candidates import Candidate, Reviewed, accepted

_TOKEN = re.compile(r"\n|[^\S\n]+|[A-Za-z]+|\d+(?:\.\d+)?|.")


def marked(original: str, rephrasing: str) -> str:
    """The rephrasing as HTML; what the original does not have in this order is marked.

    >>> marked("Find x.", "Find y.")
    'Find <mark>y</mark>.'
    """
    if len(rephrasing) > 20_000:  # an endless one, which was refused
        return f"{html.escape(rephrasing[:20_000])} …"
    a, b = _TOKEN.findall(original), _TOKEN.findall(rephrasing)
    parts = []
    for operation, _, _, start, end in SequenceMatcher(None, a, b, autojunk=len(b) > 2000).get_opcodes():
        text = html.escape("".join(b[start:end]))
        if text:
            parts.append(text if operation == "equal" or not text.strip() else f"<mark>{text}</mark>")
    return "".join(parts)


def audit_page(sample: Sequence[Reviewed], title: str) -> str:
    """Every question with its answer and candidates, refused ones too; verdicts of the checks on demand alone.

    The reader's judgements stay in the browser and are saved as JSON lines with the button, one per candidate:
    `question`, `text`, `equivalent` (true, false, or null for unsure).
    """
    entries: list[dict[str, str]] = []
    sections = []
    for item in sample:
        question, answer = html.escape(item.group.question), html.escape(" or ".join(item.group.answer))
        head = f"<h2>{html.escape(item.group.id)}</h2><p class=text>{question}</p><p>Answer: <code>{answer}</code></p>"
        cards = [_card(item, c, len(entries) + number) for number, c in enumerate(item.candidates)]
        entries += [{"question": item.group.id, "text": candidate.text} for candidate in item.candidates]
        sections.append(f"<section>{head}{''.join(cards)}</section>")
    return Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8")).substitute(
        title=html.escape(title),
        questions=len(sample),
        candidates=len(entries),
        body="\n".join(sections),
        data=json.dumps(entries).replace("<", "\\u003c"),
    )


def _card(item: Reviewed, candidate: Candidate, number: int) -> str:
    origin = ", ".join(str(candidate.provenance.get(name, "unknown")) for name in ("instruction", "model"))
    summary = f"{html.escape(origin)}: {'accepted' if accepted(candidate.verdicts) else 'refused'}"
    outcomes = {True: "passed", False: "failed", None: "undecided"}
    verdicts = "".join(
        f"<li class={outcomes[v.passed]}>{html.escape(f'{v.check}: {outcomes[v.passed]}. {v.reason}')}</li>"
        for v in candidate.verdicts
    )
    choices = "".join(
        f"<label><input type=radio name=c{number} value={value}> {label}</label>"
        for value, label in (("true", "equivalent"), ("false", "not equivalent"), ("null", "unsure"))
    )
    return (
        f"<article><p class=text>{marked(item.group.question, candidate.text)}</p><p>{choices}</p>"
        f"<details><summary>{summary}</summary><ul>{verdicts}</ul></details></article>"
    )
