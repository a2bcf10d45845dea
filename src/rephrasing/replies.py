r"""From the text of a model to what it was asked for. Models are untrusted: nothing here raises on what they write.

Replies come as JSON (structured outputs, or a model that prefers it) or in tags. LaTeX suffers in JSON: a model that
writes `"\frac"` instead of `"\\frac"` means the command, but JSON reads a form feed and "rac".
"""

from __future__ import annotations

import json
import re
from typing import Any

_FENCE = re.compile(r"\A```[a-z]*\n(.*?)\n?```\Z", re.DOTALL)
_TAGGED = re.compile(r"<rephrasing>(.*?)</rephrasing>", re.DOTALL | re.IGNORECASE)
_LOST_COMMAND = re.compile(
    r"\x08(?=[a-z])|\x0c(?=[a-z])"
    r"|\t(?=(?:imes|heta|an|ext|ag|au|o|riangle|frac|extstyle|ilde|op)\b)"
    r"|\r(?=(?:ho|ight|ightarrow|angle|ceil|floor|m|ule)\b)"
    r"|\n(?=(?:eq|abla|otin|ot|leq|geq)\b)"
)
_LETTERS = {"\x08": "\\b", "\x0c": "\\f", "\t": "\\t", "\r": "\\r", "\n": "\\n"}


def restore_latex(text: str) -> str:
    r"""LaTeX commands whose backslash was read as an escape of JSON.

    Only where the rest of the word shows it: `\n` before `eq` is a lost `\neq`, other line breaks stay.

    >>> restore_latex("\frac{1}{2} \times 3\nis what?")
    '\\frac{1}{2} \\times 3\nis what?'
    """
    return _LOST_COMMAND.sub(lambda match: _LETTERS[match[0]], text)


def read_json(reply: str) -> Any:
    r"""The JSON value of a reply, bare or in a code fence; None where there is none.

    Backslashes that JSON does not allow are taken as they stand.

    >>> read_json('```json\n{"a": "\\\\sqrt 2"}\n```'), read_json('{"a": "\\sqrt 2"}'), read_json("no")
    ({'a': '\\sqrt 2'}, {'a': '\\sqrt 2'}, None)
    """
    text = reply.strip()
    if fence := _FENCE.match(text):
        text = fence[1]
    for candidate in (text, re.sub(r'\\(?!["\\/bfnrtu])', r"\\\\", text)):
        try:
            return json.loads(candidate)
        except (ValueError, RecursionError):  # RecursionError: brackets by the thousand
            continue
    return None


def read_rephrasings(reply: str) -> list[str]:
    """The rephrasings that a reply holds, stripped, empty ones left out; none where it keeps to no format.

    >>> read_rephrasings('{"rephrasings": ["What is 1 + 1?"]}')
    ['What is 1 + 1?']
    >>> read_rephrasings("Sure! <rephrasing>Add 1 to 1.</rephrasing>"), read_rephrasings("Add 1 to 1.")
    (['Add 1 to 1.'], [])
    """
    value = read_json(reply)
    if isinstance(value, dict):
        value = value.get("rephrasings")
    if isinstance(value, list):
        texts = [restore_latex(text) for text in value if isinstance(text, str)]
    else:
        texts = _TAGGED.findall(reply)
    return [text.strip() for text in texts if text.strip()]


def read_judgement(reply: str) -> tuple[bool | None, str]:
    r"""Whether a judge calls two problems equivalent, and why; None where the reply does not say.

    >>> read_judgement('{"reason": "The 7 became an 8.", "equivalent": false}')
    (False, 'The 7 became an 8.')
    >>> read_judgement("Both ask for the sum.\nEQUIVALENT: yes"), read_judgement("Hm.")
    ((True, 'Both ask for the sum.'), (None, 'Hm.'))
    """
    value = read_json(reply)
    if isinstance(value, dict) and isinstance(value.get("equivalent"), bool):
        return value["equivalent"], str(value.get("reason", ""))
    found = list(re.finditer(r"\bequivalent\W{0,4}(yes|no|true|false)\b", reply, re.IGNORECASE))
    if not found:
        return None, reply.strip()[:300]
    last = found[-1]
    return last[1].lower() in ("yes", "true"), reply[: last.start()].strip(" \n*")[:300]
