"""The sample that a human reads: one self-contained HTML page, with changes marked and a place for each judgement."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from .candidates import Candidate, Reviewed
from .verdicts import accepted

_TOKEN = re.compile(r"\n|[^\S\n]+|[A-Za-z]+|\d+(?:\.\d+)?|.")


def marked(original: str, rephrasing: str) -> str:
    """The rephrasing as HTML; what the original does not have in this order is marked.

    >>> marked("Find x.", "Find y.")
    'Find <mark>y</mark>.'
    """
    a, b = _TOKEN.findall(original), _TOKEN.findall(rephrasing)
    parts = []
    for operation, _, _, start, end in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        text = html.escape("".join(b[start:end]))
        if text:
            parts.append(text if operation == "equal" or not text.strip() else f"<mark>{text}</mark>")
    return "".join(parts)


def audit_page(sample: Sequence[Reviewed], title: str, undecided: bool = True) -> str:
    """The page: every question with its answer and candidates, refused ones too, in an order that hides no verdict.

    The reader's judgements stay in the browser and are saved as JSON with the button, one entry per candidate:
    `question`, `text`, `equivalent` (true, false, or null for unsure). Verdicts of the checks are shown only on demand,
    so that they don't sway the reader.
    """
    entries = [{"question": item.group.id, "text": c.text} for item in sample for c in item.candidates]
    number = 0
    sections = []
    for item in sample:
        cards = []
        for candidate in item.candidates:
            cards.append(_card(item, candidate, number, undecided))
            number += 1
        answer = html.escape(" or ".join(item.group.answer))
        sections.append(
            f"<section><h2>{html.escape(item.group.id)}</h2><p class=text>{html.escape(item.group.question)}</p>"
            f"<p class=answer>Answer: <code>{answer}</code></p>{''.join(cards)}</section>"
        )
    data = json.dumps(entries).replace("<", "\\u003c")
    return _PAGE.format(
        title=html.escape(title), count=len(sample), candidates=len(entries), body="\n".join(sections), data=data
    )


def _card(item: Reviewed, candidate: Candidate, number: int, undecided: bool) -> str:
    provenance = candidate.provenance
    source = f"{provenance.instruction}, {provenance.model}" if provenance else "unknown source"
    signs = {True: "passed", False: "failed", None: "undecided"}
    verdicts = "".join(
        f"<li class={signs[v.passed]}>{html.escape(f'{v.check}: {signs[v.passed]}. {v.reason}')}</li>"
        for v in candidate.verdicts
    )
    outcome = "accepted" if accepted(candidate.verdicts, undecided) else "refused"
    choices = "".join(
        f"<label><input type=radio name=c{number} value={value}> {label}</label>"
        for value, label in (("true", "equivalent"), ("false", "not equivalent"), ("null", "unsure"))
    )
    return (
        f"<article><p class=text>{marked(item.group.question, candidate.text)}</p><p>{choices}</p>"
        f"<details><summary>{html.escape(source)}: {outcome}</summary><ul>{verdicts}</ul></details></article>"
    )


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
section {{ border-top: 2px solid #888; margin-top: 2rem; }}
article {{ border-left: 4px solid #bbb; margin: 1rem 0; padding: .1rem 1rem; }}
.text {{ white-space: pre-wrap; }} .answer {{ color: #555; }} label {{ margin-right: 1.2rem; }}
mark {{ background: #ffe9a8; }} .failed {{ color: #a00; }} .undecided {{ color: #777; }} summary {{ cursor: pointer; }}
</style></head><body>
<h1>{title}</h1>
<p>{count} questions, {candidates} rephrasings. Is each rephrasing the same problem as its question: the same
conditions, the same unknown, nothing given away? What differs from the question is marked. After judging,
fold out a line to see what the checks said. <button id=save>Save judgements</button> <span id=done></span></p>
{body}
<script>
const entries = {data};
const store = "judgements " + document.title + entries.length;
const known = JSON.parse(localStorage.getItem(store) || "{{}}");
for (const [name, value] of Object.entries(known)) {{
  const box = document.querySelector(`input[name=${{name}}][value=${{value}}]`);
  if (box) box.checked = true;
}}
const show = () => {{
  document.getElementById("done").textContent = `${{Object.keys(known).length}} of ${{entries.length}}`;
}};
show();
document.addEventListener("change", (event) => {{
  known[event.target.name] = event.target.value;
  localStorage.setItem(store, JSON.stringify(known));
  show();
}});
document.getElementById("save").addEventListener("click", () => {{
  const lines = entries.map((entry, i) => ({{...entry, value: known["c" + i]}})).filter((e) => e.value !== undefined)
    .map(({{question, text, value}}) => JSON.stringify({{question, text, equivalent: JSON.parse(value)}}));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([lines.join("\\n") + "\\n"], {{type: "application/jsonl"}}));
  link.download = "judgements.jsonl";
  link.click();
}});
</script></body></html>
"""
