r"""Canonical form of an answer, from its text.

Lists, sets, tuples, intervals, matrices, equations and side conditions are distinguished here, only from the
text. `values` reads text without such structure. There is no algebra except that of `arithmetic`.
"""

import re
from collections.abc import Collection
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from .arithmetic import Number, number_of, same_number, tree_of
from .forms import Choice, Conditioned, Equation, Form, Formula, Group, Matrix, Quantity, Words, compact
from .latex import CLOSE, OPEN, bracketed, clean, latex_of, scanned, split, tight, trimmed, unmarked
from .values import ascending, formula, has_relation, single_value

_MAX_DEPTH = 6
_LISTED = frozenset((",", ";", "and", "or"))
_LISTS = re.compile(r"[,;]|(?<![A-Za-z])(?:and|or)(?![A-Za-z])", re.IGNORECASE)
_GROUPS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9]|,[0-9])")
_CHOICE = re.compile(
    r"\(?([A-Z])\) ?[:.]? ?(?![\s({\[,;^_+=*/<>-])(.+)|([A-Z])[.:] (?![({\[,;^_+=*/<>-])(.+)", re.DOTALL
)
_OTHER_CHOICE = re.compile(r"(?<![A-Za-z])\(?[A-Z]\)(?![A-Za-z])")
_MATRIX = re.compile(
    r"(?P<factor>.*?)(?P<opening>[(\[]?) ?\\begin ?\{(?P<kind>[pbBsv]?matrix|array)\}(?:\{[clr|]*\})?(?P<rows>.*)"
    r"\\end ?\{(?P=kind)\} ?(?P<closing>[)\]]?)"
    rf"(?P<transposed> ?\^ ?\{{? ?(?:{OPEN}?T{CLOSE}?|\\top|\\intercal) ?\}}?)?",
    re.DOTALL,
)
"""Pattern of a matrix, perhaps in brackets, with a factor before it and a sign of transposition."""
_CONDITION = frozenset(
    ("for", "where", "with", "if", "when", "whenever", "unless", "provided", "such", "otherwise", "assuming")
)
_CASES = frozenset(("if", "when", "whenever", "unless", "otherwise", "assuming", "provided"))
_INEQUALITIES = frozenset(("<", ">", r"\le", r"\ge", r"\ne"))
_BOUND = re.compile(
    r"(?P<lower>[^<]+?)(?P<over><|\\le ?)(?P<above>[A-Za-z]|\\[a-z]+)"
    r"|(?P<below>[A-Za-z]|\\[a-z]+)(?P<under><|\\le ?)(?P<upper>[^<]+)"
)
"""Relations such as `3<x` or `x<3`, as `ascending` spells them."""
_UNEQUAL = re.compile(r"(?P<name>[A-Za-z])\\ne ?(?P<point>[^ ].*)")
_SAYINGS = (
    dict.fromkeys((r"\mathbb{r}", "all real numbers", "all reals", "all real values"), r"(-\infty, \infty)")
    | dict.fromkeys((r"\mathbb{r}^+", r"\mathbb{r}^{+}", r"\mathbb{r}_{>0}"), r"(0, \infty)")
    | {"all integers": r"\mathbb{Z}"}
    | dict.fromkeys(
        (
            "no solution",
            "no solutions",
            "no real solution",
            "no real solutions",
            "empty set",
            "the empty set",
        ),
        r"\emptyset",
    )
    | {"dne": f"{OPEN}does{CLOSE} {OPEN}not{CLOSE} {OPEN}exist{CLOSE}"}
)
"""Answers in words that have a form, by their compact spelling in lower case."""
_ASIDE = re.compile(
    rf"(?P<value>.*[^\s(]) ?\((?P<word>{OPEN}?(?:where|for|with){CLOSE}? )?(?P<condition>[^()]*)\)", re.DOTALL
)
"""A value, and its condition in parentheses."""
_KIND = (
    r"(?P<kind>(?:(?:positive|negative|non-?negative|non-?zero|natural|real|rational|complex) )?"
    r"(?:integer|number|constant)s?|reals?)"
)
_DECLARATIONS = (
    re.compile(r"(?P<name>[a-z])\\in ?(?:\\mathbb)?\{?(?P<kind>[znqrc])\}?"),
    re.compile(rf"(?:(?:any|all|every|each|some|an?|arbitrary) )*{_KIND} (?P<name>[a-z])"),
    re.compile(rf"(?P<name>[a-z]) (?:(?:is|being|can be|may be|any|an?|arbitrary|some) )*{_KIND}"),
)
"""Conditions that only say what kind of number a variable is, in compact spelling."""
_DOMAINS = {
    "integer": "z", "natural number": "n", "rational number": "q", "real number": "r", "real": "r",
    "complex number": "c",
}  # fmt: skip
_WITHOUT = re.compile(
    r"\\mathbb ?\{R\} ?\\setminus ?\\\{(?P<points>[^{}|:]*(?:\{[^{}]*\}[^{}|:]*)*)\\\}"
    r"|all real(?: number| value)?s? (?:[a-z] )?except (?:for )?(?P<point>.*)"
)
"""The real numbers without some points."""
_BUILDER = re.compile(r"([A-Za-z])(?: ?\\in ?\\mathbb ?\{?R\}?)? ?[|:] ?(.+)")
_RESTRICTION = re.compile(r"[A-Za-z](?:_\{?[0-9A-Za-z]\}?)? ?(?:\\ne|\\in|\\ge|\\le|<|>)(?![A-Za-z]).*")
_PREFIX = re.compile(
    r"(?:(?:so|thus|hence|therefore),? (?=[^ ]))?"
    r"(?:(?:the |our |my )?(?:final |correct )?answer\b(?: is\b| ?:| ?=)?|the (?:[A-Za-z]+ ){1,6}(?:is|are|equals)\b"
    r"|(?:option|choice) (?=\(?[A-Z]\)?(?![A-Za-z]))|approximately|approx\.?|about|roughly|\\approx(?![A-Za-z])) *",
    re.IGNORECASE,
)
_NEGATIVE = re.compile(rf"\A{OPEN}?(?:negative|minus){CLOSE}? (?=[0-9.\\])", re.IGNORECASE)
_REVERSED = re.compile(r"[\[\]][^\[\]]*[,;][^\[\]]*[\[\]]")
_MARKS_OF_NAMES = (
    r"(?:\\(?:angle|triangle|overline|vec|hat|bar|overrightarrow|widehat|measuredangle) ?)*(?:m ?\\angle ?)?"
)
_SUBSCRIPT = r"_(?:\{[^{}]*\}|[0-9A-Za-z])"
_NAMES = (
    rf"\{{?(?:[A-Za-z]|\\[A-Za-z]+)'*\}}?(?:{_SUBSCRIPT})?'*(?:\^\{{-1\}}|\^\{{\(-1\)\}})?"
    # x, \theta, x_1, f'(x), f^{-1}(2)
    r"(?: ?\((?:[A-Za-z0-9+' -]|\\[A-Za-z]+)[^()=]{0,30}\)| ?\([A-Za-z]\))?",
    r"P ?\([^()]{1,40}\)",
    r"\{?[A-Z]{2,4}\}?|\|[A-Za-z]{1,3}\||\[[A-Z]{3,5}\]",  # AB, |AB|, [ABC]
    r"\([A-Za-z](?:, ?[A-Za-z])+\)",  # (x, y)
    rf"[A-Z]{{2,4}} ?[:/] ?[A-Z]{{2,4}}|[A-Z]{_SUBSCRIPT} ?[:/] ?[A-Z]{_SUBSCRIPT}|[A-Z]:[A-Z]",  # AB:CD
    r"\\frac ?\{[A-Z]{2,4}\} ?\{[A-Z]{2,4}\}",
)
_NAMED = re.compile(rf"{_MARKS_OF_NAMES}(?:{'|'.join(_NAMES)})")


@lru_cache(maxsize=1 << 15)
def read_answer(text: str) -> Form:
    r"""Return the canonical form of an answer.

    >>> print(read_answer(r"x = \frac12"), read_answer(r"4\text{ thousand}"), read_answer("2, 1"), sep="; ")
    0.5; 4000; 1, 2
    >>> print(read_answer(r"4\text{ (or 5)}"), type(read_answer("81, 256")).__name__, read_answer("10{,}000"), sep="; ")
    4(or 5); Group; 10000
    """
    return _read(clean(text), 0)


def _read(text: str, depth: int) -> Form:
    text = trimmed(text)
    prefix = _PREFIX.match(unmarked(text)) if text else None
    if prefix and prefix.end() < len(unmarked(text)):
        text = trimmed(_without(text, prefix.end()))
    text = _NEGATIVE.sub("-", text)
    if _REVERSED.fullmatch(text) and not (text[0] == "[" and text[-1] == "]"):  # ]2,5[ is (2,5)
        text = ("(" if text[0] == "]" else "[") + text[1:-1] + ("]" if text[-1] == "]" else ")")
    text = _ungrouped(_SAYINGS.get(compact(text).casefold(), text))
    hole = _WITHOUT.fullmatch(unmarked(text))
    if hole is not None:
        text = _around(hole["points"] or hole["point"]) or text
    if depth > _MAX_DEPTH or not text:
        return Words(compact(text).casefold())
    found = _choice(text, depth) or _listed(text, depth) or _conditioned(text, depth)
    found = found or _union(text, depth) or _membership(text, depth) or _equation(text, depth)
    found = found or _enclosed(text, depth)
    return found or _matrix(text, depth) or _either_sign(text, depth) or single_value(text)


def _without(text: str, count: int) -> str:
    """Drop the first `count` characters; marks do not count."""
    for place, character in enumerate(text):
        if count <= 0 and character != CLOSE:
            return text[place:]
        count -= character not in (OPEN, CLOSE)
    return ""


def _choice(text: str, depth: int) -> Form | None:
    match = _CHOICE.fullmatch(unmarked(text))
    if match is None:
        return None
    letter, content = (match[1], match[2]) if match[1] else (match[3], match[4])
    words = re.findall(r"[A-Za-z]+|\\.", content)
    if _OTHER_CHOICE.search(content) or (words and words[0] in ("or", "and", "is", "not")):
        return None
    place = len(text) - len(content)
    return Choice(letter, _read(text[place:] if unmarked(text[place:]) == content else content, depth + 1))


def _listed(text: str, depth: int) -> Form | None:
    if not _LISTS.search(text):
        return None
    parts = [part for part in map(trimmed, split(text, _LISTED)) if part]
    if len(parts) < 2:
        return None
    ranges = _ranges(text, parts, depth)
    if ranges is not None:
        return ranges
    first = next((place for place, part in enumerate(parts) if place and _is_condition(part)), None)
    if first is not None:
        condition = _condition(", ".join(parts[first:]))
        is_case = condition.split(" ", 1)[0] in _CASES
        return Conditioned(_read(", ".join(parts[:first]), depth + 1), condition, is_case)
    parts = _rows(text) or parts
    items: list[Form] = []
    for part in parts:
        item = _read(part, depth + 1)
        items += item.items if isinstance(item, Group) and item.kind == "list" else (item,)
    return Group("list", tuple(items), latex=tight(latex_of(text)))


def _rows(text: str) -> list[str]:
    """Return the tuples of `p=5, q=2; p=7, q=2`, with parentheses; empty if the text has no such rows."""
    rows = [row for row in map(trimmed, split(text, frozenset(";"))) if row]
    if len(rows) < 2:
        rows = [row for row in map(trimmed, split(text, frozenset(("or",)))) if row]
        if not all(_names_values(row) for row in rows):
            return []
    if len(rows) < 2 or not any("," in row and bracketed(row) is None for row in rows):
        return []
    return [f"({row})" if len(split(row, frozenset(","))) > 1 else row for row in rows]


def _names_values(row: str) -> bool:
    """Return whether a text lists the values of several names: `p=5, q=2`."""
    parts = split(row, frozenset((",", "and")))
    return len(parts) > 1 and all(part.count("=") == 1 for part in parts)


def _ranges(text: str, parts: list[str], depth: int) -> Form | None:
    """Read several inequalities: a union if `or` joins them, a range if they bound a variable."""
    if not all(has_relation(part, _INEQUALITIES) for part in parts):
        return None
    joined = {unmarked(token).lower() for _, inside, token in scanned(text) if not inside} & _LISTED
    found = tuple(_read(part, depth + 1) for part in parts)
    if joined == {"or"}:
        return Group("union", found, latex=tight(latex_of(text)))
    holes = [_UNEQUAL.fullmatch(tight(part)) for part in parts]
    if len({hole and hole["name"] for hole in holes}) == 1 and joined <= {",", "and"}:
        around = _around(", ".join(hole["point"] for hole in holes if hole))
        if around and all(holes):
            return _read(around, depth + 1)
    bounds = [_BOUND.fullmatch(ascending(tight(part))) for part in parts]
    lower = next((bound for bound in bounds if bound and bound["lower"]), None)
    upper = next((bound for bound in bounds if bound and bound["upper"]), None)
    if len(parts) == 2 and lower and upper and lower["above"] == upper["below"]:
        least = number_of(lower["lower"])
        most = number_of(upper["upper"])
        if least and most and least.real < most.real:
            sides = (lower["lower"], lower["over"], lower["above"], upper["under"], upper["upper"])
            return _read(" ".join(sides), depth + 1)
        if least and most and joined == {","}:
            return Group("union", found, latex=tight(latex_of(text)))
    return Group("list", found, latex=tight(latex_of(text)))


def _ungrouped(text: str) -> str:
    """Drop the commas between groups of three digits: outside brackets, and everywhere before a zero."""
    if "," not in text:
        return text
    outside = {place for place, depth, token in scanned(text) if token == "," and not depth}
    return _join_groups(text, outside)


def _join_groups(text: str, outside: Collection[int] = frozenset()) -> str:
    """Drop a number's commas if one stands before a zero, or the first is at a place in `outside`."""

    def join(match: re.Match[str]) -> str:
        number = match[0]
        if ",0" in number or match.start() + number.index(",") in outside:
            return number.replace(",", "")
        return number

    return _GROUPS.sub(join, text)


def _is_condition(part: str) -> bool:
    words = unmarked(part).split(" ", 1)
    if words[0] in _CONDITION:
        return True
    return bool(_RESTRICTION.fullmatch(part)) and not re.match(r"[A-Za-z] ?\\in ?[\[({\\](?!mathbb)", part)


def _conditioned(text: str, depth: int) -> Form | None:
    for place, inside, token in scanned(text):
        word = unmarked(token)
        if place and not inside and word in _CONDITION:
            value = trimmed(text[:place])
            condition = text[place + len(token) :]
            if not value:
                return None
            return Conditioned(_read(value, depth + 1), _condition(condition), word in _CASES)
    match = _ASIDE.fullmatch(text)
    if match is None:
        return None
    value, condition = match["value"], match["condition"]
    is_called = value[-1].isalpha() and r"\in" not in condition  # P(x>0)
    is_restriction = _RESTRICTION.fullmatch(condition) is not None and not is_called
    if not (match["word"] or _declared(condition) or is_restriction):
        return None
    return Conditioned(_read(value, depth + 1), _condition(condition), False)


def _condition(text: str) -> str:
    """Return one spelling of equal conditions: compact, or the declaration of a variable (`_declared`)."""
    return _declared(text) or compact(text).casefold()


def _declared(text: str) -> str | None:
    r"""Return `k in z` for `k\in\mathbb{Z}`, `any integer k` and the like; None for every other text."""
    spelled = re.sub(r"\A(?:for|where|with) ", "", compact(text).casefold())
    for pattern in _DECLARATIONS:
        match = pattern.fullmatch(spelled)
        if match is not None:
            kind = match["kind"].removesuffix("s")
            return f"{match['name']} in {_DOMAINS.get(kind, kind)}"
    return None


def _union(text: str, depth: int) -> Form | None:
    if r"\cup" not in text:
        return None
    parts = split(text, frozenset((r"\cup",)))
    if len(parts) < 2:
        return None
    return Group("union", tuple(_read(part, depth + 1) for part in parts), latex=tight(latex_of(text)))


def _around(points: str) -> str | None:
    """Spell the real numbers without some points as a union of intervals; None if a point has no value."""
    found = [(number_of(point), point.strip()) for point in split(points, frozenset((",", "and")))]
    placed = sorted((number.real, point) for number, point in found if number and not number.imaginary)
    if len(placed) < len(found):
        return None
    ends = [r"-\infty", *(point for _, point in placed), r"\infty"]
    return r"\cup".join(f"({lower}, {upper})" for lower, upper in pairwise(ends))


def _membership(text: str, depth: int) -> Form | None:
    r"""Read a statement of membership, `x\in S`."""
    match = re.match(rf"({_NAMED.pattern}) ?\\in(?![A-Za-z]) ?(.*)", text, re.DOTALL)
    if match is None or has_relation(match[2]):
        return None
    return Equation(tight(latex_of(text)), compact(match[1]), _read(match[2], depth + 1))


def _equation(text: str, depth: int) -> Form | None:
    is_chain = ("=" in text or r"\approx" in text) and not has_relation(text)
    sides = [trimmed(side) for side in split(text, frozenset(("=", r"\approx")))] if is_chain else []
    if len(sides) < 2:
        return None
    latex = tight(latex_of(text))
    if not all(sides):
        return Equation(latex)
    name, stated = _named(sides)
    values = [_read(side, depth + 1) for side in stated]
    if not _all_equal(values):
        return Equation(latex)
    if name is None and (not isinstance(values[0], Formula | Quantity) or _amount(values[0]) is None):
        return _claimed(latex, values)
    alternatives = tuple(
        dict.fromkeys(value for value in values if _is_percent(value) != _is_percent(values[-1]))
    )
    if name is None and not alternatives:
        return values[-1]
    return Equation(latex, name, values[-1], alternatives)


def _named(sides: list[str]) -> tuple[str | None, list[str]]:
    """Return an equation's name that has a value, None without one, and the statements of the value."""
    first, *others = sides
    if _is_name(first):
        while len(others) > 1 and _is_name(others[0]):
            del others[0]
        return compact(first), others
    if len(sides) == 2 and _is_name(sides[1]):
        return compact(sides[1]), [first]
    return None, sides


def _claimed(latex: str, values: list[Form]) -> Equation:
    """Read an equation whose left side needs algebra: its value is the right side if both sides are equal."""
    first = values[0]
    last = values[-1]
    if len(values) != 2 or not isinstance(first, Formula) or first.polynomial is not None:
        return Equation(latex)
    if not isinstance(last, Formula) or last.number is None:
        return Equation(latex)
    return Equation(latex, None, last, claim=(latex_of(first.latex), latex_of(last.latex)))


def _is_percent(form: Form) -> bool:
    return isinstance(form, Quantity) and form.unit.name == "percent"


def _amount(form: Form) -> Number | None:
    return form.number if isinstance(form, Formula | Quantity) else None


def _all_equal(values: list[Form]) -> bool:
    """Return whether no two values of a chain of equal signs are known to differ."""
    return not any(_contradicts(values[0], value) for value in values[1:])


def _contradicts(first: Form, value: Form) -> bool:
    one = _amount(first)
    other = _amount(value)
    if one is not None and other is not None:
        written = value.amount if isinstance(value, Quantity) else value
        rounded = isinstance(written, Formula) and written.is_decimal
        near = abs(one.real - other.real) * 100 <= abs(one.real) and one.imaginary == other.imaginary
        return same_number(one, other) is False and not (rounded and near)
    if not (isinstance(first, Formula) and isinstance(value, Formula)):
        return False
    if one is None and other is None and (first.polynomial is None or value.polynomial is None):
        return False
    return first.polynomial != value.polynomial


def _is_name(text: str) -> bool:
    if _NAMED.fullmatch(text):
        return compact(text) not in (r"\pi", "e", "i", r"\infty")
    words = unmarked(text).split()
    return OPEN in text and len(words) <= 4 and all(word.isalpha() for word in words)


def _enclosed(text: str, depth: int) -> Form | None:
    if compact(text) in (r"\emptyset", r"\{\}"):
        return Group("set", ())
    parts = bracketed(text)
    if parts is None:
        return None
    opening, content, closing = parts
    latex = tight(latex_of(text))
    if opening == r"\{" and closing == r"\}":
        return _braced(content, latex, depth)
    ends = opening.removeprefix("\\") + closing.removeprefix("\\")
    ends = "()" if ends == "langlerangle" else ends
    items = _items(content)
    if ends not in ("()", "[]", "(]", "[)") or (len(items) != 2 and ends not in ("()", "[]")):
        return None
    if len(items) == 1:
        return None if content.startswith(r"\begin") else _read(content, depth + 1)
    kind: Literal["interval", "tuple"] = "interval" if len(items) == 2 and ends != "()" else "tuple"
    return Group(kind, tuple(_read(item, depth + 1) for item in items), ends, latex)


def _braced(content: str, latex: str, depth: int) -> Form | None:
    """Read the content of braces: the elements of a set, or the relation that they satisfy."""
    if "|" in content or ":" in content:
        builder = _BUILDER.fullmatch(content)
        return formula(builder[2]) if builder and has_relation(builder[2]) else None
    return Group("set", tuple(_read(item, depth + 1) for item in _items(content) if item), latex=latex)


def _items(content: str) -> list[str]:
    places = range(len(content)) if ", " in content else ()  # `(1,500, 2)` has two numbers, `(1,500)` too
    return [trimmed(part) for part in split(_join_groups(content, places), frozenset((",", ";")))]


def _matrix(text: str, depth: int) -> Form | None:
    """Read a matrix, or a sum of matrices with factors in front, such as a line in vector form."""
    if r"\begin" not in text:
        return None
    signs = [token for _, inside, token in scanned(text) if not inside and token in ("+", "-")]
    first, *others = split(text, frozenset(("+", "-")))
    terms = list(zip(signs, others, strict=True))
    if first.strip():
        terms.insert(0, ("", first))
    summands: list[list[list[str]]] = []
    for sign, term in terms:
        cells = _cells(sign, term.strip())
        if cells is None or (summands and list(map(len, cells)) != list(map(len, summands[0]))):
            return None
        summands.append(cells)
    rows = []
    for lines in zip(*summands, strict=True):
        sums = map("".join, zip(*lines, strict=True))
        rows.append(tuple(_read(cell, depth + 1) for cell in sums))
    return Matrix(tuple(rows)) if rows and len(set(map(len, rows))) == 1 else None


def _cells(sign: str, term: str) -> list[list[str]] | None:
    """Return the cells of a matrix, multiplied by sign and factor; None if the term is not a matrix."""
    match = _MATRIX.fullmatch(term) if term.count(r"\begin") == 1 else None
    if match is None or bool(match["opening"]) != bool(match["closing"]):
        return None
    if match["kind"] == "vmatrix" or (match["kind"] in ("array", "matrix") and not match["opening"]):
        return None
    factor = match["factor"].strip().removesuffix(r"\cdot").removesuffix(r"\times").strip()
    if factor and tree_of(latex_of(factor)) is None:
        return None
    lines = [line.strip() for line in match["rows"].replace(r"\hline", "").split(r"\\")]
    rows = [split(line, frozenset("&")) for line in lines if line]
    if match["transposed"] and len(set(map(len, rows))) == 1:
        rows = list(map(list, zip(*rows, strict=True)))
    if not sign and not factor:
        return rows
    scaled = f"{sign or '+'}({factor or '1'})"
    return [[f"{scaled}({cell.strip()})" for cell in row] for row in rows]


def _either_sign(text: str, depth: int) -> Form | None:
    if r"\pm" not in text and r"\mp" not in text:
        return None
    signs = [token for _, _, token in scanned(text) if token in (r"\pm", r"\mp")]
    if not signs:
        return None
    upper = re.sub(r"\\pm(?![A-Za-z])", "+", re.sub(r"\\mp(?![A-Za-z])", "-", text))
    lower = re.sub(r"\\pm(?![A-Za-z])", "-", re.sub(r"\\mp(?![A-Za-z])", "+", text))
    if has_relation(text, (r"\ne",)):
        return _read(f"{upper}, {lower}", depth + 1)
    return Group("list", (_read(upper, depth + 1), _read(lower, depth + 1)), latex=tight(latex_of(text)))
