r"""From an answer, as it was written, to its canonical form.

Lists, sets, tuples, intervals, matrices, equations, bases, units, scales and side conditions are told apart here, by
the text alone. No algebra is done but that of `arithmetic`.
"""

import re
from fractions import Fraction
from functools import lru_cache

from . import arithmetic
from .arithmetic import Number, number_of, polynomial_of
from .forms import Based, Choice, Clock, Conditioned, Equation, Form, Formula, Group, Matrix, Quantity, Words, compact
from .latex import CLOSE, OPEN, bracketed, clean, latex_of, scanned, split, tight, trimmed, unmarked
from .units import CURRENCIES, NUMBER_WORDS, PLAIN_LETTERS, Unit, number_in_words, unit_of

_MAX_DEPTH = 6
_LISTED = frozenset((",", ";", "and", "or"))
_LISTS = re.compile(r"[,;]|(?<![A-Za-z])(?:and|or)(?![A-Za-z])", re.IGNORECASE)
_GROUPS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_PLAIN = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9.]+ ?\\times ?10\^\{?[+-]?[0-9]+\}?)")
_REPEATING = re.compile(
    r"([+-]?)([0-9]*)\.([0-9]*)\\(?:overline|bar|dot|overrightarrow)(?![A-Za-z]) ?(?:\{([0-9]{1,40})\}|([0-9]))"
)
_ELLIPSIS = re.compile(r"([+-]?)([0-9]{0,40})\.([0-9]{1,40}) ?\\ldots")
_MIXED = re.compile(r"([+-]?)([0-9]{1,40}) ([0-9]{1,40}) ?/ ?([0-9]{1,40})")
_SPACED = re.compile(r"[+-]?[0-9]{1,3}(?: [0-9]{3})+(?:\.[0-9]+)?")
_ADJACENT = re.compile(r"[0-9.] +[0-9.]")
_ORDINAL = re.compile(rf"([0-9]+) ?\^? ?\{{? ?{OPEN}?(?:st|nd|rd|th){CLOSE}? ?\}}?")
_BASE_SUFFIX = re.compile(
    r"\(?(-?[0-9A-Za-z]+(?:\.[0-9A-Za-z]+)?)\)? ?_ ?(?:\{ ?\(?([0-9]{1,2}|[a-z]+)\)? ?\}|([0-9])|([a-z]{3,}))"
)
_BASE_WORDS = re.compile(r"(-?[0-9A-Z]+(?:\.[0-9A-Z]+)?) ?\(? ?(?:in )?base[ -]([0-9]{1,2}|[a-z]+) ?\)?")
_UNIT_SIGNS = frozenset(("€", "£", "¥", "₹", "¢", "Ω", "Å", "µ", "μ", r"\$", r"\Omega", r"\AA"))
_CLOCK = re.compile(
    r"(0?)([0-9]{1,2})(?::([0-9]{2})(:[0-9]{2})?(?: ?([apAP])\.? ?[mM]\.?)?| ?([AP])\.? ?M\.?| ([ap])\.? ?m\.?)"
)
_IN_PARENTHESES = re.compile(r"(.*[^\s(/]) ?(?:\( ?(\x02[^()]*)\)|(?<= )\(([A-Za-z][A-Za-z^0-9/ ]+)\))")
_CURRENCY = re.compile(
    r"([+-]?) ?(?:\x02?US\x03? ?)?(\\\$|\x02?(?:[€£¥₹]|(?:Rs|USD|EUR|GBP)(?![A-Za-z]))\x03?)\.? ?(?=[0-9.(\\-])"
)
_PER = re.compile(r" *\x02?per\x03? \x02?[A-Za-z]+\x03?$")
_CHOICE = re.compile(
    r"\(?([A-Z])\) ?[:.]? ?(?![\s({\[,;^_+=*/<>-])(.+)|([A-Z])[.:] (?![({\[,;^_+=*/<>-])(.+)", re.DOTALL
)
_OTHER_CHOICE = re.compile(r"(?<![A-Za-z])\(?[A-Z]\)(?![A-Za-z])")
_MATRIX = re.compile(r"\\begin ?\{([pbBsv]?matrix|array)\}(?:\{[clr|]*\})?(.*)\\end ?\{\1\}", re.DOTALL)
_CONDITION = frozenset(
    ("for", "where", "with", "if", "when", "whenever", "unless", "provided", "such", "otherwise", "assuming")
)
_CASES = frozenset(("if", "when", "whenever", "unless", "otherwise", "assuming", "provided"))
_RELATIONS = frozenset(
    ("<", ">", r"\le", r"\ge", r"\ne", r"\in", r"\subset", r"\subseteq", r"\notin", r"\equiv", r"\sim")
)
_INEQUALITIES = frozenset(("<", ">", r"\le", r"\ge", r"\ne"))
_BOUND = re.compile(
    r"(?P<lower>[^<]+?)(?P<over><|\\le ?)(?P<above>[A-Za-z]|\\[a-z]+)"
    r"|(?P<below>[A-Za-z]|\\[a-z]+)(?P<under><|\\le ?)(?P<upper>[^<]+)"
)
"""`3<x` or `x<3`, as `_ascending` spells them."""
_SAYINGS = (
    dict.fromkeys((r"\mathbb{r}", "all real numbers", "all reals", "all real values"), r"(-\infty, \infty)")
    | dict.fromkeys(("no solution", "no solutions", "no real solution", "no real solutions"), r"\emptyset")
    | {"dne": f"{OPEN}does{CLOSE} {OPEN}not{CLOSE} {OPEN}exist{CLOSE}"}
)
"""Answers in words that have a form, by their compact spelling in lower case."""
_OF_ANGLES = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_BUILDER = re.compile(r"([A-Za-z])(?: ?\\in ?\\mathbb ?\{?R\}?)? ?[|:] ?(.+)")
_RESTRICTION = re.compile(r"[A-Za-z](?:_\{?[0-9A-Za-z]\}?)? ?(?:\\ne|\\in|\\ge|\\le|<|>)(?![A-Za-z]).*")
_PREFIX = re.compile(
    r"(?:(?:so|thus|hence|therefore),? (?=[^ ]))?"
    r"(?:(?:the |our |my )?(?:final |correct )?answer\b(?: is\b| ?:| ?=)?|the (?:[A-Za-z]+ ){1,6}(?:is|are|equals)\b"
    r"|(?:option|choice) (?=\(?[A-Z]\)?(?![A-Za-z]))|approximately|approx\.?|about|roughly|\\approx(?![A-Za-z])) *",
    re.IGNORECASE,
)
_JOINING = frozenset(("and", "as", "but", "if", "is", "no", "not", "of", "or", "so", "vs"))
"""Short words that are no product of variables."""
_VOWELS = frozenset("aeiou")
_FACTORS = frozenset("abcdhkmnpqrxyz")
_CAPITALS = re.compile(r"[A-Z](?: ?[A-Z])+")
_MARKS_OF_NAMES = (
    r"(?:\\(?:angle|triangle|overline|vec|hat|bar|overrightarrow|widehat|measuredangle) ?)*(?:m ?\\angle ?)?"
)
_SUBSCRIPT = r"_(?:\{[^{}]*\}|[0-9A-Za-z])"
_NAMES = (
    rf"\{{?(?:[A-Za-z]|\\[A-Za-z]+)'*\}}?(?:{_SUBSCRIPT})?'*(?:\^\{{-1\}}|\^\{{\(-1\)\}})?"
    r"(?: ?\((?:[A-Za-z0-9+' -]|\\[A-Za-z]+)[^()=]{0,30}\)| ?\([A-Za-z]\))?",  # x, \theta, x_1, f'(x), f^{-1}(2)
    r"P ?\([^()]{1,40}\)",
    r"\{?[A-Z]{2,4}\}?|\|[A-Za-z]{1,3}\||\[[A-Z]{3,5}\]",  # AB, |AB|, [ABC]
    r"\([A-Za-z](?:, ?[A-Za-z])+\)",  # (x, y)
    rf"[A-Z]{{2,4}} ?[:/] ?[A-Z]{{2,4}}|[A-Z]{_SUBSCRIPT} ?[:/] ?[A-Z]{_SUBSCRIPT}|[A-Z]:[A-Z]",  # AB:CD
    r"\\frac ?\{[A-Z]{2,4}\} ?\{[A-Z]{2,4}\}",
)
_NAMED = re.compile(rf"{_MARKS_OF_NAMES}(?:{'|'.join(_NAMES)})")
_COMMAND_NAMES = """
frac sqrt binom cdot times div sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp lfloor
rfloor lceil rceil sum prod int lim infty pi pm mp cup cap in le ge ne begin end overline vec hat bar text
partial circ mathbb angle triangle ell gcd lcm max min det operatorname langle rangle emptyset setminus
approx prime choose over dot ddot forall exists mod pmod bmod equiv subset subseteq notin imath hbar nabla
"""
_COMMANDS = frozenset(_COMMAND_NAMES.split()) | arithmetic.GREEK  # fmt: skip


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
    text = _ungrouped(_SAYINGS.get(compact(text).casefold(), text))
    if depth > _MAX_DEPTH or not text:
        return Words(compact(text).casefold())
    found = _choice(text, depth) or _listed(text, depth) or _conditioned(text, depth)
    found = found or _union(text, depth) or _equation(text, depth) or _enclosed(text, depth)
    return found or _matrix(text, depth) or _either_sign(text, depth) or _single(text)


def _without(text: str, count: int) -> str:
    """Drop the first characters; marks do not count."""
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
    parts = [part for part in (trimmed(part) for part in split(text, _LISTED)) if part]
    if len(parts) < 2:
        return None
    ranges = _ranges(text, parts, depth)
    if ranges is not None:
        return ranges
    first = next((place for place, part in enumerate(parts) if place and _is_condition(part)), None)
    if first is not None:
        condition = compact(", ".join(parts[first:])).casefold()
        is_case = condition.split(" ", 1)[0] in _CASES
        return Conditioned(_read(", ".join(parts[:first]), depth + 1), condition, is_case)
    rows = [trimmed(row) for row in split(text, frozenset(";"))]
    if len(rows) > 1 and any("," in row and bracketed(row) is None for row in rows):  # `p=5, q=2; p=7, q=2`
        parts = [f"({row})" if len(split(row, frozenset(","))) > 1 else row for row in rows if row]
    items: list[Form] = []
    for part in parts:
        item = _read(part, depth + 1)
        items += item.items if isinstance(item, Group) and item.kind == "list" else (item,)
    return Group("list", tuple(items), latex=tight(latex_of(text)))


def _ranges(text: str, parts: list[str], depth: int) -> Form | None:
    """Read several inequalities: a union if `or` joins them, one range if they bound a variable on both sides."""
    if not all(_is_inequality(part) for part in parts):
        return None
    joined = {unmarked(token).lower() for _, inside, token in scanned(text) if not inside} & _LISTED
    found = tuple(_read(part, depth + 1) for part in parts)
    if joined == {"or"}:
        return Group("union", found, latex=tight(latex_of(text)))
    bounds = [_BOUND.fullmatch(_ascending(tight(part))) for part in parts]
    lower = next((bound for bound in bounds if bound and bound["lower"]), None)
    upper = next((bound for bound in bounds if bound and bound["upper"]), None)
    if len(parts) == 2 and lower and upper and lower["above"] == upper["below"]:
        least, most = number_of(lower["lower"]), number_of(upper["upper"])
        if least and most and least.real < most.real:
            sides = (lower["lower"], lower["over"], lower["above"], upper["under"], upper["upper"])
            return _read(" ".join(sides), depth + 1)
        if least and most and joined == {","}:
            return Group("union", found, latex=tight(latex_of(text)))
    return Group("list", found, latex=tight(latex_of(text)))


def _is_inequality(text: str) -> bool:
    return any(not depth and token in _INEQUALITIES for _, depth, token in scanned(text))


def _ungrouped(text: str) -> str:
    """Drop the commas between groups of three digits: outside brackets, and everywhere before `000`."""
    if "," not in text:
        return text
    spans = []
    for place, depth, token in scanned(text):
        if token == "," and not depth:
            spans.append(place)
    outside = set(spans)

    def join(match: re.Match[str]) -> str:
        group = match[0]
        if match.start() + group.index(",") in outside or re.search(r",0[0-9]{2}", group):
            return group.replace(",", "")
        return group

    return _GROUPS.sub(join, text)


def _is_condition(part: str) -> bool:
    words = unmarked(part).split(" ", 1)
    if words[0] in _CONDITION:
        return True
    return bool(_RESTRICTION.fullmatch(part)) and not re.match(
        r"[A-Za-z] ?\\in ?[\[({\\]", part.replace(r"\in \mathbb", "∈")
    )


def _conditioned(text: str, depth: int) -> Form | None:
    for place, inside, token in scanned(text):
        word = unmarked(token)
        if place and not inside and word in _CONDITION:
            value, condition = trimmed(text[:place]), text[place + len(token) :]
            if not value:
                return None
            return Conditioned(_read(value, depth + 1), compact(condition).casefold(), word in _CASES)
    match = re.fullmatch(r"(.*[^\s(]) ?\((?:\x02)?(?:where|for|with)\x03? (.*)\)", text)
    return Conditioned(_read(match[1], depth + 1), compact(match[2]).casefold(), False) if match else None


def _union(text: str, depth: int) -> Form | None:
    if r"\cup" not in text:
        return None
    parts = split(text, frozenset((r"\cup",)))
    if len(parts) < 2:
        return None
    return Group("union", tuple(_read(part, depth + 1) for part in parts), latex=tight(latex_of(text)))


def _has_relation(text: str) -> bool:
    return any(not depth and token in _RELATIONS for _, depth, token in scanned(text))


def _equation(text: str, depth: int) -> Form | None:  # noqa: PLR0911
    membership = re.match(rf"({_NAMED.pattern}) ?\\in(?![A-Za-z]) ?(.*)", text, re.DOTALL)
    if membership and not _has_relation(membership[2]):
        return Equation(tight(latex_of(text)), compact(membership[1]), _read(membership[2], depth + 1))
    if "=" not in text and r"\approx" not in text:
        return None
    if _has_relation(text):
        return None
    sides = [trimmed(side) for side in split(text, frozenset(("=", r"\approx")))]
    if len(sides) < 2:
        return None
    latex = tight(latex_of(text))
    if not all(sides):
        return Equation(latex)
    first, *others = sides
    name: str | None = None
    if _is_name(first):
        name = compact(first)
        while len(others) > 1 and _is_name(others[0]):
            del others[0]
    elif len(sides) == 2 and _is_name(sides[1]):
        name, others = compact(sides[1]), [first]
    else:
        others = sides
    values = [_read(side, depth + 1) for side in others]
    if not _all_equal(values):
        return Equation(latex)
    if name is None and not isinstance(values[0], Formula | Quantity):
        return Equation(latex)
    if name is None and _amount(values[0]) is None:
        return _claimed(latex, values)
    alternatives = tuple(dict.fromkeys(value for value in values if _is_percent(value) != _is_percent(values[-1])))
    if name is None and not alternatives:
        return values[-1]
    return Equation(latex, name, values[-1], alternatives)


def _claimed(latex: str, values: list[Form]) -> Equation:
    """Read an equation whose left side needs algebra: its value is the right side if the two are equal."""
    first, last = values[0], values[-1]
    if len(values) != 2 or not isinstance(first, Formula) or first.polynomial is not None:
        return Equation(latex)
    if not isinstance(last, Formula) or last.number is None:
        return Equation(latex)
    return Equation(latex, None, last, claim=(latex_of(first.latex), latex_of(last.latex)))


def _is_percent(form: Form) -> bool:
    return isinstance(form, Quantity) and form.unit.name == "percent"


def _amount(form: Form) -> Number | None:
    if isinstance(form, Quantity):
        number = form.amount.number
        if number is None or form.unit.name != "percent":
            return number
        return Number(number.real / 100, number.imaginary / 100, number.exact)
    return form.number if isinstance(form, Formula) else None


def _all_equal(values: list[Form]) -> bool:
    """Whether a chain of equal signs is no false statement, as far as is known."""
    return not any(_contradicts(values[0], value) for value in values[1:])


def _contradicts(first: Form, value: Form) -> bool:
    one, other = _amount(first), _amount(value)
    if one is not None and other is not None:
        written = value.amount if isinstance(value, Quantity) else value
        rounded = isinstance(written, Formula) and written.is_decimal
        near = abs(one.real - other.real) * 100 <= abs(one.real) and one.imaginary == other.imaginary
        return arithmetic.same_number(one, other) is False and not (rounded and near)
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


def _enclosed(text: str, depth: int) -> Form | None:  # noqa: PLR0911
    if compact(text) in (r"\emptyset", r"\{\}"):
        return Group("set", ())
    parts = bracketed(text)
    if parts is None:
        return None
    opening, content, closing = parts
    ends = opening.removeprefix("\\") + closing.removeprefix("\\")
    items = [trimmed(part) for part in split(_ungrouped_inside(content), frozenset((",", ";")))]
    if opening == r"\{" and closing == r"\}":
        if "|" in content or ":" in content:
            builder = _BUILDER.fullmatch(content)
            return formula(builder[2]) if builder and _has_relation(builder[2]) else None
        return Group("set", tuple(_read(item, depth + 1) for item in items if item), latex=tight(latex_of(text)))
    if ends == "langlerangle":
        ends = "()"
    if len(items) == 1:
        return _read(content, depth + 1) if ends in ("()", "[]") and not content.startswith(r"\begin") else None
    if ends not in ("()", "[]", "(]", "[)"):
        return None
    interval = len(items) == 2 and ends != "()"
    if not interval and ends not in ("()", "[]"):
        return None
    return Group(
        "interval" if interval else "tuple", tuple(_read(i, depth + 1) for i in items), ends, tight(latex_of(text))
    )


def _ungrouped_inside(content: str) -> str:
    return _GROUPS.sub(lambda match: match[0].replace(",", "") if ",0" in match[0] else match[0], content)


def _matrix(text: str, depth: int) -> Form | None:
    inner = bracketed(text)
    match = _MATRIX.fullmatch(inner[1] if inner and inner[0] in ("(", "[") else text)
    if match is None or match[1] == "vmatrix" or (match[1] in ("array", "matrix") and inner is None):
        return None
    rows = [row.strip() for row in match[2].replace(r"\hline", "").split(r"\\")]
    cells = tuple(tuple(_read(cell, depth + 1) for cell in split(row, frozenset("&"))) for row in rows if row)
    return Matrix(cells) if cells and len({len(row) for row in cells}) == 1 else None


def _either_sign(text: str, depth: int) -> Form | None:
    if r"\pm" not in text and r"\mp" not in text:
        return None
    signs = [token for _, _, token in scanned(text) if token in (r"\pm", r"\mp")]
    if not signs:
        return None
    upper = re.sub(r"\\pm(?![A-Za-z])", "+", re.sub(r"\\mp(?![A-Za-z])", "-", text))
    lower = re.sub(r"\\pm(?![A-Za-z])", "-", re.sub(r"\\mp(?![A-Za-z])", "+", text))
    return Group("list", (_read(upper, depth + 1), _read(lower, depth + 1)), latex=tight(latex_of(text)))


def _single(text: str) -> Form:
    """One value without structure."""
    plain = unmarked(text)
    found = _ordinal(text) or _based(plain) or _numeral(plain) or _clock(plain) or _ratio(text)
    if found is not None:
        return found
    if len(plain) == 1 or re.fullmatch(r"\([A-Za-z]\)", plain):
        return formula(plain.strip("()"))
    quantity = _compound(text) or _quantity(text)
    if quantity is not None:
        return quantity
    if _is_text(text) and not any(form.fullmatch(text) for form in (_MIXED, _SPACED, _ELLIPSIS)):
        return Words(_letters(text))
    return formula(text)


def formula(text: str) -> Formula:
    """Read mathematics without structure of its own."""
    truncated = text.endswith(r"\ldots")
    text = _fraction_of(text.removeprefix("+").strip())
    number = number_of(latex_of(text))
    polynomial = polynomial_of(text) if number is None else None
    if polynomial is not None and not re.search(r"[A-Za-z]", polynomial.replace(r"\sqrt", "").replace(r"\frac", "")):
        polynomial = None
    decimal = number is not None and (truncated or _DECIMAL.fullmatch(text) is not None)
    latex = _ascending(tight(text))
    if number is not None and number.is_short:
        latex = str(number)
    return Formula(polynomial or latex, number, polynomial, decimal, _has_relation(text))


def _ascending(latex: str) -> str:
    r"""Spell `3>x\ge 1` as `1\le x<3`."""
    turned = {">": "<", r"\ge": r"\le "}
    signs = [token for _, depth, token in scanned(latex) if not depth and token in _RELATIONS]
    if not signs or not all(sign in turned for sign in signs):
        return latex
    parts = split(latex, frozenset(turned))
    pieces = [parts[-1].strip()]
    for part, sign in zip(parts[-2::-1], reversed(signs), strict=True):
        pieces += (turned[sign], part.strip())
    return tight("".join(pieces))


def _fraction_of(text: str) -> str:
    """Spell mixed numbers, repeating decimals and spaced digits so that `arithmetic` reads them."""
    if match := _REPEATING.fullmatch(text):
        sign, whole, start, block, digit = match.groups()
        return _repeating(sign, whole, start, block or digit)
    if match := _ELLIPSIS.fullmatch(text):
        return _truncated(*match.groups())
    if match := _MIXED.fullmatch(text):
        return f"{match[1]}({match[2]}+{match[3]}/{match[4]})"
    return text.replace(" ", "") if _SPACED.fullmatch(text) else text


def _repeating(sign: str, whole: str, start: str, block: str) -> str:
    """Spell a repeating decimal as a fraction."""
    scale = 10 ** len(start)
    value = Fraction(int((whole or "0") + start), scale) + Fraction(int(block), (10 ** len(block) - 1) * scale)
    return rf"{sign}\frac{{{value.numerator}}}{{{value.denominator}}}"


def _truncated(sign: str, whole: str, digits: str) -> str:
    r"""Spell a decimal that ends in `\ldots`: as a fraction if its last digits repeat, else as it stands."""
    for size in range(1, len(digits) // 2 + 1):
        block = digits[-size:]
        if digits.endswith(block * 2):
            start = digits
            while start.endswith(block):
                start = start.removesuffix(block)
            return _repeating(sign, whole, start, block)
    return f"{sign}{whole}.{digits}"


def _numeral(plain: str) -> Form | None:
    value = number_in_words(plain)
    return None if value is None else formula(str(value))


def _ratio(text: str) -> Form | None:
    """Terms with a colon or `to` between them: `1:2:3`, `3 to 4`. A ratio of two terms is a quotient."""
    terms = [trimmed(term) for term in split(text, frozenset((":", "to")))]
    numbers = [number_of(term) for term in terms]
    if len(terms) < 2 or None in numbers:
        return None
    first = numbers[0]
    if len(terms) == 2 or first is None or not (first.real or first.imaginary):
        return formula(":".join(terms))
    return Group("ratio", tuple(formula(f"({term})/({terms[0]})") for term in terms))


def _compound(text: str) -> Form | None:
    """Read amounts in several units side by side: `3 hours 20 minutes`."""
    parts = re.split(r"(?<=[A-Za-z\x03]) *(?=[0-9])", text)
    if len(parts) < 2:
        return None
    amounts = [_quantity(part.strip()) for part in parts]
    if not all(isinstance(amount, Quantity) and amount.amount.number and not amount.unit.is_noun for amount in amounts):
        return None
    return Group("list", tuple(amount for amount in amounts if amount), latex=tight(latex_of(text)))


def _ordinal(text: str) -> Form | None:
    match = _ORDINAL.fullmatch(text)
    return Quantity(formula(match[1]), Unit("ordinal")) if match else None


def _clock(plain: str) -> Form | None:
    """A time of day, which is no ratio: with seconds, a leading zero, or a.m. or p.m."""
    match = _CLOCK.fullmatch(plain)
    if match is None:
        return None
    zero, hour, minutes, seconds, *halves = match.groups()
    half = next((f"{letter.lower()}m" for letter in halves if letter), None)
    if not (zero or seconds or half):
        return None
    return Clock(hour, f":{minutes or '00'}{seconds or ''}", half)


def _based(plain: str) -> Form | None:
    match = _BASE_SUFFIX.fullmatch(plain)
    words = _BASE_WORDS.fullmatch(plain) if match is None else None
    if match is None and words is None:
        return None
    if match is not None:
        digits, base = match[1], next(group for group in match.groups()[1:] if group)
    else:
        assert words is not None
        digits, base = words[1], words[2]
    number = int(base) if base.isdigit() else NUMBER_WORDS.get(base, 0)
    sign, digits = ("-" if digits.startswith("-") else ""), digits.removeprefix("-").upper()
    if not 2 <= number <= 36 or not any(character.isdigit() for character in digits):
        return None
    if any(int(character, 36) >= number for character in digits.replace(".", "")):
        return None
    return Based(sign + (digits.lstrip("0") or "0"), number)


def _quantity(text: str) -> Form | None:
    currency = _CURRENCY.match(text)
    if currency:
        sign = unmarked(currency[2]).removeprefix("\\")
        name = CURRENCIES.get(sign) or {"Rs": "rupee", "USD": "dollar", "EUR": "euro", "GBP": "pound"}[sign]
        rest = _single(currency[1] + _PER.sub("", text[currency.end() :]))
        amount, unit = (rest.amount, rest.unit) if isinstance(rest, Quantity) else (rest, Unit(""))
        if not isinstance(amount, Formula) or amount.number is None or unit.is_noun:
            return None
        if unit.name not in ("", name):
            name = f"{name} {unit.name}"
        return Quantity(amount, Unit(name))
    if match := _IN_PARENTHESES.fullmatch(text):
        return _with_unit(text, match[1], match[2] or match[3], spaced=True)
    for place, depth, token in scanned(text):
        marked = token.startswith(OPEN)
        if depth or not (marked or (token.isalpha() and token.isascii()) or token in _UNIT_SIGNS):
            continue
        if not place:
            return _spelled_amount(text)
        head, tail = text[:place].rstrip(), text[place:]
        found = _with_unit(text, head, tail, spaced=text[place - 1] == " ")
        if found is not None:
            return found
        if marked:
            return None
    return None


def _spelled_amount(text: str) -> Form | None:
    """`four dollars`, but no other words."""
    first, _, rest = unmarked(text).partition(" ")
    value = number_in_words(first)
    if value is None or not rest:
        return None
    return _with_unit(text, str(value), "".join(f"{OPEN}{word}{CLOSE} " for word in rest.split()).strip(), spaced=True)


def _with_unit(text: str, head: str, tail: str, *, spaced: bool) -> Form | None:  # noqa: PLR0911
    head = head.removesuffix(r"\cdot").removesuffix(r"\times").removesuffix("-").rstrip()
    if not head or _is_text(head) or _has_relation(head) or _OF_ANGLES.search(head):
        return None
    amount = formula(head)
    value = amount.number.real if amount.number else None
    unit = unit_of(tail.replace(r"\$", "$"), value, spaced)
    if unit is None:
        return None
    letters = unmarked(tail)
    may_be_variable = len(letters) == 1 and letters not in PLAIN_LETTERS
    if not unit.certain and (amount.number is None or may_be_variable):
        return None
    if unit.is_noun and (amount.number is None or (OPEN not in tail and not spaced)):
        return None
    if unit.scale > 1:
        if amount.number is None:
            return None
        amount = formula(f"({head}) \\times {unit.scale}")
    if not unit.name:
        return amount
    is_unit = unit.certain and len(letters) > 1 and (spaced or OPEN in tail)
    return Quantity(amount, unit, None if is_unit else formula(unmarked(text)))


def _is_text(text: str) -> bool:  # noqa: PLR0911
    """Whether the text has words or signs that no formula has, or numbers side by side."""
    if _CAPITALS.fullmatch(text):
        return True
    bare = re.sub(r"[_^] ?(?:\{[^{}]*\}|\x02[^\x03]*\x03|[0-9A-Za-z])", "", text)
    bare = re.sub(r"\\(?:operatorname|mathbb|begin|end) ?\{[^{}]*\}", "", bare).replace(f"{OPEN}degree{CLOSE}", "")
    if _ADJACENT.search(bare) and r"\begin" not in text:
        return True
    if bare.count("|") % 2:
        return True
    for _, _, token in scanned(bare):
        if token.startswith(OPEN):
            if len(unmarked(token)) > 1:
                return True
        elif token.startswith("\\"):
            if token[1:] not in _COMMANDS and token not in (r"\{", r"\}", r"\|", r"\\"):
                return True
        elif token.isalpha():
            if not token.isascii() or _is_word(token) or token.lower() in _JOINING:
                return True
        elif token in '?&#@;"':
            return r"\begin" not in text
    return False


def _is_word(run: str) -> bool:
    """Whether letters in a row are a word, and no product of variables."""
    letters = set(run.lower())
    if len(run) < 3 or (run.isupper() and len(run) < 5):
        return False
    vowels = letters & _VOWELS
    return len(run) > 3 or len(set(run)) < 3 or bool(vowels - {"a"}) or bool(vowels and not letters <= _FACTORS)


def _letters(text: str) -> str:
    text = re.sub(r"\\(?:overline|overrightarrow|angle|triangle) ?(?:\{([A-Za-z ]*)\})?", r"\1", text)
    text = re.sub(r"^(?:an?|the) (?=[^ ]{3})", "", compact(text).casefold())
    text = re.sub(r"(?<=[0-9])(?:st|nd|rd|th)(?![a-z])", "", text)
    inner = text.removeprefix("(").removesuffix(")").replace(" ", "") if _CAPITALS.fullmatch(text.upper()) else text
    return inner.rstrip(".")
