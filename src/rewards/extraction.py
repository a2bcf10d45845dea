r"""Final answer of a response, as it was written.

Responses are untrusted: they may be megabytes long, contain control characters or never close a brace. No
function here raises on responses or backtracks. The cost is proportional to the length.
"""

import re
from typing import NamedTuple

from .canonical import normalize_answer
from .response import PAGE_BREAK, last_answer_block, split_response, without_answer_marks

_BOX_OR_BRACE = re.compile(
    r"\\(?:boxed|fbox)(?![A-Za-z])"
    r"(?:\s*(?P<open>\{)|[ \t]*(?=(?P<bare>(?!\\boxed|\\fbox)[^\s{}$](?:(?!\\boxed|\\fbox)[^$\n])*)(?P<dollar>\$?)))?"
    r"|\\[{}]|\\\\(?!boxed|fbox)|(?P<brace>[{}])"
)
_BLANK = re.compile(
    r"(?:[\s~._?…{}$*]|\\[ ,;:!]|\\(?:boxed|fbox)(?![A-Za-z])|\\(?:ldots|dots|cdots|cdot|quad|qquad)(?![A-Za-z])"
    r"|\\h?phantom\s*\{[^{}]*\}|\\(?:text|mbox|mathrm|hspace)\s*(?=\{))*"
    r"(?:(?:(?:the|your|my|final)\s){0,2}(?:answer|result)(?:\shere)?[\s.}]*)?",
    re.IGNORECASE,
)
"""Contents of boxes without an answer: nothing, dots, and the word `answer`, as in prompts."""
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_BARE_END = re.compile(r"[.;!?](?:\s|\Z)|,\s")
_BETWEEN = re.compile(
    r"(?:[\s$,;&*_`]|\\[,;: ()\[\]]|\\\\|\\q?quad(?![A-Za-z])|\\text\s*\{\s*,?\s*(?:and|or)?\s*\}"
    r"|^(?:[-+•]|\(?(?:\d{1,2}|[a-z])[.)])\s|\b(?:and|or|as well as)\b"
    r"|(?<![A-Za-z])\\?[A-Za-z]{1,8}(?:_\{?\w{1,3}\}?)?(?:\([a-z]\))?\s?(?:=|\\in)(?![=\w]))*",
    re.MULTILINE,
)
"""Text that may be between boxes of one answer: separators, dollars, bullets, `x =` before a box."""
_LONGEST_GAP = 60
_DENIED = re.compile(
    r"(?:\b(?:not|never|rather than|instead of)|n[’']t)(?:\sequal\sto)?[\s$*_(\[\\]*\Z", re.IGNORECASE
)
_LONGEST_DENIAL = 32

_MARKED = re.compile(r"#{4,}\s*((?:(?!####)[^\n])*)")
_ITEM = re.compile(r"(?:\d+|[A-Za-z])[.):]\s+[A-Za-z]{2}")
_MATHEMATICAL = re.compile(r"[-+±≈~<>=$€£¥\\(\[{|.\d√π∞]|[A-Za-z](?![A-Za-z])")
_STATED = re.compile(
    r"\banswers?[\s*_]*(?:is\b|are\b|:|=)[\s:*_=]*"
    r"|^[#*_> \t]{1,12}(?:(?:the|my|final)[ ]){0,2}answers?[*_ \t]{0,8}$[\s:*_]*",
    re.IGNORECASE | re.MULTILINE,
)
_DOUBTED = re.compile(
    r"(?:(?:\b(?:not|never|hardly|cannot)|n[’']t)(?:\s(?:really|quite|fully|entirely|at|all|be|the|a|\d+%)){0,3}"
    r"\s(?:think|believe|sure|certain|confident|convinced|clear|say|claim|know|case|true)"
    r"|\b(?:doubt|unsure|uncertain|unclear|suppos(?:e|ing)|assum(?:e|ing)|imagine|if|whether|unless|false|wrong))"
    r"(?:\s(?:of|as|to|that|whether|if)){0,3}(?:\s(?:the|my|our|this|its))?(?:\s(?:final|correct|right|best|true|actual)){0,2}"
    r"\s{0,4}\Z",
    re.IGNORECASE,
)
"""Words that doubt or suppose the statement that follows: "I am not sure whether the"."""
_LONGEST_DOUBT = 80
_INLINE = re.compile(r"\$(?!\s)([^$]*[^$\s])\$(?!\d)")
_DISPLAY = re.compile(
    r"\$\$((?:(?!\$\$).)+)\$\$|\\\[((?:(?!\\\]).)+)\\\]|\\\(((?:(?!\\\)).)+)\\\)", re.DOTALL
)
_ANOTHER = re.compile(
    r"(?:,\s?(?:and\s|or\s)?|\s(?:and|or)\s|\s?;\s?)"
    r"(?:\$(?!\s)([^$\n]*[^$\s])\$(?!\d)|\\\(((?:(?!\\\))[^\n])+)\\\)|\*\*([^*\n]+)\*\*|([-+]?\d{1,40}(?:[.,]\d{1,40}){0,9}(?=[\s.,;]|\Z)))"
)
"""A further formula or number of a statement."""
_BELONGING = re.compile(
    r"\s?(?:\\?%|(?:percent|dozen|hundred|thousand|million|billion|trillion|if|when|unless|otherwise|or|to)\b)"
    r"(?!\s(?:we|you|I|is|are)\b)"
)
"""Words behind a formula that change its value."""
_SENTENCE_END = re.compile(r"(?<!approx)\.(?=\s|\Z)")
_REASON = re.compile(
    rf"(?:,\s?|\s)(?:because|since|which)\b|,\s(?:and\s)?not\b|{_SENTENCE_END.pattern}", re.IGNORECASE
)

_ASKS_FOR_ALL = re.compile(
    r"\bseparated\sby\b|\b(?:find|list|enter|give|determine|state|name|compute|are)\sall\b"
    r"|\bthe\s(?:two|three|four)\s(?:\w+\s){0,2}(?:solutions|values|roots)\b",
    re.IGNORECASE,
)
_ASKS_FOR_ONE = re.compile(r"\beither\sof\b|\b(?:only|any)\sone\b|\bnot\sboth\b", re.IGNORECASE)
_ASKS_FOR_ANY = re.compile(r"\b(?:find|give|name|enter|state|determine)\s(?:an?|any|one)\b", re.IGNORECASE)
_ALSO_RIGHT = re.compile(
    r"\balso\s(?:\w+\s){0,2}(?:acceptable|accepted|correct|right)\b|\beither\b", re.IGNORECASE
)
_PLURAL = re.compile(r"\b(?:solve|solutions|roots|zeros|values|what\sare)\b", re.IGNORECASE)
_OR = re.compile(r"[\s$,;.]*\bor\b[\s$,;]*")
_SEPARATOR = re.compile(r"[,;]|\b(?:and|or)\b")
_ALSO = re.compile(r"\b(?:also|or|alternatively)\b", re.IGNORECASE)


class Box(NamedTuple):
    r"""A complete `\boxed` or `\fbox` with content; positions are characters of the text."""

    start: int
    """Start of the command."""
    content: str
    """Content of the box, stripped; never empty."""
    end: int
    """End of the box, exclusive."""


def after_marker(response: str, marker: str) -> str | None:
    """Return the first line of text after the last `marker`, stripped; None if there is no such text."""
    _, found, tail = response.rpartition(marker)
    lines = tail.strip().splitlines()
    return lines[0].strip() if found and lines else None


def boxes(text: str) -> list[Box]:
    r"""Return the complete boxes of a text in order, without empty boxes; only the innermost if nested.

    A box that never closes (a truncated response) is left out. Without braces (`\boxed 9$`), the content of a
    box is the rest of the line, up to the closing dollar or the end of the sentence. Such a box is left out
    if its content is prose (`in \boxed as you asked`). Boxes of dots or of the word `answer` count as empty,
    and a box after "not" is left out.

    >>> [box.content for box in boxes(r"so \boxed{1}, or \boxed{\frac{1}{2}}, in \boxed{}, not \boxed{3")]
    ['1', '\\frac{1}{2}']
    """
    first = min((place for place in map(text.find, ("\\boxed", "\\fbox")) if place >= 0), default=None)
    if first is None:
        return []
    found: list[Box] = []
    open_braces: list[tuple[int, int] | None] = []  # command and content of a box, None for other braces
    for token in _BOX_OR_BRACE.finditer(text, first):
        box = None
        if token["open"]:
            open_braces.append((token.start(), token.end()))
        elif token["bare"]:
            content = _bare_content(token["bare"], closed=bool(token["dollar"]))
            box = Box(token.start(), content, token.start("bare") + len(content))
        elif token["brace"] == "{":
            open_braces.append(None)
        elif token["brace"] == "}" and open_braces:
            begin = open_braces.pop()
            if begin is not None and not (found and found[-1].start > begin[0]):
                box = Box(begin[0], text[begin[1] : token.start()].strip(), token.end())
        if box is None or _BLANK.fullmatch(box.content):
            continue
        if not _DENIED.search(text, max(0, box.start - _LONGEST_DENIAL), box.start):
            found.append(box)
    return found


def _bare_content(line: str, *, closed: bool) -> str:
    """Return the content of a box without braces, from the rest of its line; empty for prose."""
    end = None if closed else _BARE_END.search(line)
    line = line[: end.start()] if end else line
    words = [word.start() for word in _WORD.finditer(line)]
    if words and words[0] == 0 and not (closed and len(words) == 1):
        return ""
    if len(words) > 1:
        line = line[: words[0]]
    line = line.strip().rstrip(" ,;&")
    for word in (" and", " or"):
        line = line.removesuffix(word).rstrip(" ,;&")
    depth = 0
    for place, character in enumerate(line):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth < 0:
            line = line[:place].rstrip()
            break
    return "" if line[:1] in {"", *".,;:!?)]}'\"`”’*"} else line


def last_boxes(text: str) -> tuple[str, ...]:
    r"""Return the contents of the last box and of its neighbours before it; empty if the text has no box.

    Boxes are neighbours if there are only separators between them: spaces, dollars, commas, `and`, `or`, `x
    =`. Equal boxes count once.

    >>> last_boxes(r"Not \boxed{1}, but $x=\boxed{2}$ or $x=\boxed{3}$.")
    ('2', '3')
    """
    found = boxes(text)
    group = found[-1:]
    for box in reversed(found[:-1]):
        gap = text[box.end : group[-1].start]
        if len(gap) > _LONGEST_GAP or not _BETWEEN.fullmatch(gap):
            break
        group.append(box)
    contents = tuple(box.content for box in reversed(group))
    return contents[:1] if len(set(contents)) == 1 else contents


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last complete box that is not empty, stripped; None if there is no such box.

    >>> last_boxed(r"so \boxed{1}, or \boxed{\frac{1}{2}}, not \boxed{3"), last_boxed(r"\boxed{}"), last_boxed("9")
    ('\\frac{1}{2}', None, None)
    """
    found = boxes(text)
    return found[-1].content if found else None


def extract_answers(response: str) -> tuple[str, ...]:
    r"""Return the final answers as they were written; empty if there are none.

    Only the answer of the response is read, not its thoughts (`split_response`). The first of these that
    occurs in the answer is returned:

    1. the contents of the last box and of its neighbours (`last_boxes`);
    2. the rest of the line after the last `####` that a formula or a number follows. If there is no such
       `####`, a statement (see 3.) after the last `####` is preferred, or any statement if that `####` is a
       heading above text, such as `#### Step 3`. Without such a statement, the rest of the line after the
       last `####`;
    3. the answer of the last statement ("answer is" or "answer:"): the formula or the bold text after these
       words, or the text up to the end of the sentence or to "because", "since" or "which". A statement that
       is doubted or only supposed does not count ("I doubt that the answer is 4");
    4. the text between the last `<answer>` and `</answer>`.

    >>> extract_answers(r"<think>\boxed{1}?</think> $x=\boxed{2}$ or $x=\boxed{3}$"), extract_answers("#### 7")
    (('2', '3'), ('7',))
    """
    answer = split_response(response).answer
    found = last_boxes(answer)
    if found:
        return found
    last = marked_or_stated(without_answer_marks(answer)) or last_answer_block(answer)
    return (last,) if last else ()


def extract_answer(response: str) -> str | None:
    r"""Return the last of the final answers (`extract_answers`); None if there are none.

    >>> [extract_answer(text) for text in ("3 + 4 = 7 #### 7", "The answer is $9$. I hope so.", "Seven.")]
    ['7', '9', None]
    """
    found = extract_answers(response)
    return found[-1] if found else None


def is_doubted(text: str, start: int) -> bool:
    """Check whether a text doubts or only supposes the statement that begins at `start`.

    >>> [is_doubted(text, text.find("answer")) for text in ("If the answer is 3", "I doubt it. The answer is 3")]
    [True, False]
    """
    return _DOUBTED.search(text, max(0, start - _LONGEST_DOUBT), start) is not None


def marked_or_stated(text: str, *, reasons: bool = False) -> str | None:
    """Return the text after the last `####` or the last "answer is"; None if the text has neither.

    `text` is an answer without marks around it (`without_answer_marks`). A statement ends before "because",
    "since" or "which" unless `reasons` is true.
    """
    return _marked_answer(text) or _stated_answer(text, 0, reasons=reasons)


def _marked_answer(text: str) -> str | None:
    """Return the text after the last `####`; None if there is no `####`, or a statement is preferred."""
    marks = [mark for mark in _MARKED.finditer(text) if mark[1].strip()] if "####" in text else []
    if not marks:
        return None
    found = next((mark for mark in reversed(marks) if _reads_as_answer(mark[1])), None)
    if found is None:
        found = marks[-1]
        begins = text[: found.start()].rpartition("\n")[2].strip() == ""
        has_body = text[found.end() :].strip() != ""
        if _stated_answer(text, 0 if begins and has_body else found.start()):
            return None
    return found[1].splitlines()[0].strip() or None


def _reads_as_answer(text: str) -> bool:
    """Check whether the rest of a line may be an answer: a formula or a number with a unit; no heading."""
    text = text.strip(" \t\r*_`")
    if not _MATHEMATICAL.match(text) or _ITEM.match(text):
        return False
    words = _WORD.findall(re.sub(r"\\(?:text|mbox|mathrm)\s*\{[^{}]*\}", "", text))
    return len(words) <= 3 and not any(word.istitle() for word in words)


def _stated_answer(text: str, start: int, *, reasons: bool = False) -> str | None:
    """Return the answer of the last statement that begins at or after `start`.

    Returns None if there is no statement, or if the last statement is doubted.
    """
    statements = list(_STATED.finditer(text, start))
    if not statements:
        return None
    statement = statements[-1]
    if is_doubted(text, statement.start()):
        return None
    rest = text[statement.end() :]
    displayed = _DISPLAY.match(rest)
    if displayed and displayed[0][2:-2].strip() and PAGE_BREAK not in displayed[0]:
        return _with_more(next(filter(None, displayed.groups())), rest[displayed.end() :])
    line = rest.partition("\n")[0]
    formula = _INLINE.search(line)
    before = line[: formula.start()] if formula else ""
    if formula and not _SENTENCE_END.search(before) and not any(map(str.isdigit, before)):
        return _with_more(formula[1], line[formula.end() :])
    if "**" in statement[0] or "__" in statement[0]:
        line, closed, behind = line.replace("__", "**").partition("**")
        line = _with_more(line, behind) if closed else line
    end = (_SENTENCE_END if reasons else _REASON).search(line)
    line = line[: end.start()] if end else line
    return line.strip(" *_`\t\r") or None


def _with_more(formula: str, rest: str) -> str:
    r"""Return the formula of a statement with the parts after it that belong to it: `$x=5$ or $x=6$`.

    These parts are further formulas or numbers after a comma, `and` or `or`, scales (`$5$ million`), a
    percent sign and conditions (`$5$ if`).
    """
    line = rest.partition("\n")[0]
    found = formula.strip()
    end = 0
    while more := _ANOTHER.match(line, end):
        found += ", " + next(filter(None, more.groups())).strip()
        end = more.end()
    behind = _BELONGING.match(line, end)
    if behind:
        sentence = _REASON.search(line, end)
        found += " " + line[end : sentence.start() if sentence else None].replace("$", "").strip()
    return found


def extract_reference(solution: str, question: str = "") -> tuple[str, ...]:
    r"""Return the reference answers of a worked solution, any of which is correct; empty if it has no answer.

    The reference is the content of the last box or, without a box, the text after the last `####`. If boxes
    differ and the question is given, the question decides:

    - The question asks for all values ("find all …", "separated by commas"): one reference with the contents
      of all boxes, or of the last box if it repeats the contents of the others.
    - The question asks for one of several values ("either of them", "a unit vector"), or the solution offers
      its boxes as alternatives (`\boxed{20:34}` or `\boxed{8:34\text{ p.m.}}`, "is also acceptable"): one
      reference for each box.
    - In all other cases: one reference with the contents of the last box and of its neighbours
      (`last_boxes`).

    >>> extract_reference(r"$k=\boxed{5}$ or $k=\boxed{-3}$", "Find all $k$."), extract_reference("It is 5. #### 5")
    (('5, -3',), ('5',))
    """
    solution = _without_figures(solution)
    found = boxes(solution)
    if not found:
        marked = after_marker(solution, "####")
        return (marked,) if marked else ()
    contents = tuple({normalize_answer(box.content): box.content for box in found}.values())
    if len(contents) == 1 or not question:
        return (found[-1].content,)
    if _ASKS_FOR_ONE.search(question) or _offers_alternatives(solution, question, found):
        return contents
    neighbours = last_boxes(solution)
    if _ASKS_FOR_ALL.search(question):
        return (_joined(contents),)
    return (_joined(neighbours),)


def _without_figures(solution: str) -> str:
    """Drop the code of figures, `[asy]…[/asy]`, which may contain boxes."""
    first, *others = solution.split("[asy]")
    kept = [first]
    for other in others:
        _, closed, behind = other.partition("[/asy]")
        kept.append(behind if closed else other)
    return "".join(kept)


def _offers_alternatives(solution: str, question: str, found: list[Box]) -> bool:
    """Check whether each box of a solution answers a question that does not ask for all values."""
    if _ASKS_FOR_ALL.search(question):
        return False
    before, last = found[-2:]
    gap = solution[before.end : last.start]
    if _ALSO_RIGHT.search(solution, before.end):
        return True
    if _ASKS_FOR_ANY.search(question) and _ALSO.search(gap):
        return True
    return _OR.fullmatch(gap) is not None and not _PLURAL.search(question)


def _joined(contents: tuple[str, ...]) -> str:
    """Return the values of several boxes as a list; only the last box if it has all the values."""
    values = {normalize_answer(value) for value in _SEPARATOR.split(contents[-1])}
    others = {normalize_answer(content) for content in contents[:-1]}
    return contents[-1] if others <= values else ", ".join(contents)
