"""From a response to its final answer, as it was written.

Responses are untrusted: they may be megabytes long, hold control characters or never close a brace. No function here
raises on them or backtracks; the cost is proportional to the length.
"""

import re

_BOX_OR_BRACE = re.compile(
    r"\\(?:boxed|fbox)(?![A-Za-z])"
    r"(?:\s*(?P<open>\{)|[ \t]*(?P<bare>(?!\\boxed|\\fbox)[^\s{}$](?:(?!\\boxed|\\fbox)[^$\n])*))?"
    r"|\\[{}]|\\\\(?!boxed|fbox)|(?P<brace>[{}])"
)
_ANSWER_IS = re.compile(r"\banswer\s*(?:is\b|:)[\s:*]*", re.IGNORECASE)


def after_marker(response: str, marker: str) -> str | None:
    """The rest of the line after the last `marker`, stripped; None without a marker or with nothing after it."""
    _, found, tail = response.rpartition(marker)
    lines = tail.strip().splitlines()
    return lines[0].strip() if found and lines else None


def last_boxed(text: str) -> str | None:
    r"""The content of the last complete `\boxed` or `\fbox`, stripped; None without one.

    Of nested boxes the innermost counts. A box that never closes (a truncated response) is skipped for the one before
    it. Without braces (`\boxed 9$`) the rest of the line counts, up to the closing dollar.

    >>> last_boxed(r"so \boxed{1}, or \boxed{\frac{1}{2}}, not \boxed{3"), last_boxed(r"\boxed{}"), last_boxed("9")
    ('\\frac{1}{2}', '', None)
    """
    last = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if last < 0:
        return None
    span = _last_box_span(text, last) or _last_box_span(text, 0)
    return None if span is None else text[slice(*span)].strip()


def _last_box_span(text: str, position: int) -> tuple[int, int] | None:
    span: tuple[int, int] | None = None
    open_braces: list[int | None] = []  # where a box's content starts, None for a brace that belongs to no box
    for token in _BOX_OR_BRACE.finditer(text, position):
        closed: tuple[int, int] | None = None
        if token["open"]:
            open_braces.append(token.end())
        elif token["bare"]:
            closed = token.span("bare")
        elif token["brace"] == "{":
            open_braces.append(None)
        elif token["brace"] == "}" and open_braces and (start := open_braces.pop()) is not None:
            closed = (start, token.start())
        if closed and (span is None or closed[0] > span[0]):
            span = closed
    return span


def extract_answer(response: str) -> str | None:
    r"""The final answer as it was written, None where the response has none.

    The first of these that is there and not empty: the last complete box (`last_boxed`); the rest of the line
    after the last `####`; what follows the last "answer is" or "answer:" on its line: the first `$…$` span if
    there is one, else the text up to the end of the sentence.

    >>> [extract_answer(text) for text in ("3 + 4 = 7 #### 7", "The answer is $9$. I hope so.", "Seven.")]
    ['7', '9', None]
    """
    return last_boxed(response) or after_marker(response, "####") or _stated_answer(response) or None


def extract_answers(response: str) -> tuple[str, ...]:
    r"""The final answers as they were written, of which the last is `extract_answer`; empty without any."""
    answer = extract_answer(response)
    return () if answer is None else (answer,)


def _stated_answer(response: str) -> str | None:
    statements = list(_ANSWER_IS.finditer(response))
    if not statements:
        return None
    line = response[statements[-1].end() :].partition("\n")[0]
    span = re.search(r"\$([^$]+)\$", line)
    return (span[1] if span else re.split(r"\.(?=\s|$)", line, maxsplit=1)[0]).strip(" *\t\r")


def extract_reference(solution: str) -> str | None:
    r"""The reference answer of a worked solution: its last box, else what follows its last `####`.

    None when there is none, or an empty box, as in two solutions of the MATH training set.
    """
    boxed = last_boxed(solution)
    return (after_marker(solution, "####") if boxed is None else boxed) or None
