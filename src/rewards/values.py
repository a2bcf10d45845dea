r"""Values without further structure (numbers, quantities, times, words, …) from an answer's text."""

import re
from collections.abc import Collection
from fractions import Fraction

from . import arithmetic
from .arithmetic import number_of, polynomial_of
from .forms import Based, Clock, Form, Formula, Group, Quantity, Words, compact
from .latex import CLOSE, OPEN, latex_of, scanned, split, tight, trimmed, unmarked
from .units import NUMBER_WORDS, PLAIN_LETTERS, Unit, currency, number_in_words, unit_of

_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9.]+ ?\\times ?10\^\{?[+-]?[0-9]+\}?)")
_REPEATING = re.compile(
    r"([+-]?)([0-9]*)\.([0-9]*)"
    r"(?:\\(?:overline|bar|dot|overrightarrow)(?![A-Za-z]) ?(?:\{([0-9]{1,40})\}|([0-9]))|\(([0-9]{1,40})\))"
)
_DOTTED = re.compile(r"\\dot ?\{?([0-9])\}? ?([0-9]{0,40}) ?\\dot ?\{?([0-9])\}?\Z")
"""Dots over the first and the last digit of the block that repeats."""
_ELLIPSIS = re.compile(r"([+-]?)([0-9]{0,40})\.([0-9]{1,40}) ?\\ldots")
_MIXED = re.compile(r"([+-]?)([0-9]{1,40}) ([0-9]{1,40}) ?/ ?([0-9]{1,40})")
_SPACED = re.compile(r"[+-]?[0-9]{1,3}(?: [0-9]{3})+(?:\.[0-9]+)?")
_ADJACENT = re.compile(r"[0-9.] +[0-9.]")
_ORDINAL = re.compile(rf"([0-9]+) ?\^? ?\{{? ?{OPEN}?(?:st|nd|rd|th){CLOSE}? ?\}}?")
_BASE_SUFFIX = re.compile(
    r"(?:\\overline)? ?[({]?(-?[0-9A-Za-z]+(?:\.[0-9A-Za-z]+)?)[)}]? ?_ ?"
    r"(?:\{ ?\(?(?:base[ -])?([0-9]{1,2}|[a-z]+)\)? ?\}|([0-9])|([a-z]{3,}))"
)
_BASE_WORDS = re.compile(r"(-?[0-9A-Z]+(?:\.[0-9A-Z]+)?) ?\(? ?(?:in )?base[ -]([0-9]{1,2}|[a-z]+) ?\)?")
_UNIT_SIGNS = frozenset(("€", "£", "¥", "₹", "¢", "Ω", "Å", "µ", "μ", r"\$", r"\Omega", r"\AA"))
_CLOCK = re.compile(
    r"(0?)([0-9]{1,2})(?::([0-9]{2})(:[0-9]{2})?(?: ?([apAP])\.? ?[mM]\.?)?| ?([AP])\.? ?M\.?| ([ap])\.? ?m\.?)"
)
_IN_PARENTHESES = re.compile(rf"(.*[^\s(/]) ?(?:\( ?({OPEN}[^()]*)\)|(?<= )\(([A-Za-z][A-Za-z^0-9/ ]+)\))")
_CURRENCY = re.compile(
    rf"([+-]?) ?(?:{OPEN}?US{CLOSE}? ?)?(\\\$|{OPEN}?(?:[€£¥₹]|(?:Rs|USD|EUR|GBP)(?![A-Za-z])){CLOSE}?)"
    rf"(?:(?<=[A-Za-z{CLOSE}])\.)? ?(?=[0-9.(\\-])"
)
_PER = re.compile(rf" *{OPEN}?per{CLOSE}? {OPEN}?[A-Za-z]+{CLOSE}?$")
_RELATIONS = frozenset(
    ("<", ">", r"\le", r"\ge", r"\ne", r"\in", r"\subset", r"\subseteq", r"\notin", r"\equiv", r"\sim")
)
_OF_ANGLES = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_JOINING = frozenset(("and", "as", "but", "if", "is", "no", "not", "of", "or", "so", "vs"))
"""Short words that are not a product of variables."""
_VOWELS = frozenset("aeiou")
_FACTORS = frozenset("abcdhkmnpqrxyz")
_CAPITALS = re.compile(r"[A-Z](?: ?[A-Z])+")
_COMMAND_NAMES = """
frac sqrt binom cdot times div sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp lfloor
rfloor lceil rceil sum prod int lim infty pi pm mp cup cap in le ge ne begin end overline vec hat bar text
partial circ mathbb angle triangle ell gcd lcm max min det operatorname langle rangle emptyset setminus
approx prime choose over dot ddot forall exists mod pmod bmod equiv subset subseteq notin imath hbar nabla
"""
_COMMANDS = frozenset(_COMMAND_NAMES.split()) | arithmetic.GREEK  # fmt: skip


def single_value(text: str) -> Form:
    """Read a text without structure: a number, a quantity, a time, a word or a formula."""
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
    """Read mathematics without further structure."""
    truncated = text.endswith(r"\ldots")
    text = _fraction_of(text.removeprefix("+").strip())
    number = number_of(latex_of(text))
    polynomial = polynomial_of(text) if number is None else None
    if polynomial is not None and not re.search(
        r"[A-Za-z]", polynomial.replace(r"\sqrt", "").replace(r"\frac", "")
    ):
        polynomial = None
    decimal = number is not None and (truncated or _DECIMAL.fullmatch(text) is not None)
    latex = ascending(tight(text))
    if number is not None and number.is_short:
        latex = str(number)
    return Formula(polynomial or latex, number, polynomial, decimal, has_relation(text))


def _fraction_of(text: str) -> str:
    """Spell mixed numbers, repeating decimals and spaced digits so that `arithmetic` reads them."""
    match = _REPEATING.fullmatch(_DOTTED.sub(r"(\1\2\3)", text))
    if match:
        sign, whole, start, *blocks = match.groups()
        return _repeating(sign, whole, start, "".join(filter(None, blocks)))
    match = _ELLIPSIS.fullmatch(text)
    if match:
        return _truncated(*match.groups())
    match = _MIXED.fullmatch(text)
    if match:
        return f"{match[1]}({match[2]}+{match[3]}/{match[4]})"
    return text.replace(" ", "") if _SPACED.fullmatch(text) else text


def _repeating(sign: str, whole: str, start: str, block: str) -> str:
    """Spell a repeating decimal as a fraction."""
    scale = 10 ** len(start)
    value = Fraction(int((whole or "0") + start), scale) + Fraction(
        int(block), (10 ** len(block) - 1) * scale
    )
    return rf"{sign}\frac{{{value.numerator}}}{{{value.denominator}}}"


def _truncated(sign: str, whole: str, digits: str) -> str:
    r"""Spell a decimal that ends in `\ldots` as a fraction if its last digits repeat; otherwise keep it.

    The repeating block is the block whose repetitions have the most digits, or the shortest of several such
    blocks.
    """
    longest = 0
    repeated = ("", "")
    for size in range(1, len(digits) // 2 + 1):
        block = digits[-size:]
        start = digits
        while start.endswith(block):
            start = start.removesuffix(block)
        length = len(digits) - len(start)
        if length >= 2 * size and length > longest:
            longest = length
            repeated = (start, block)
    start, block = repeated
    return _repeating(sign, whole, start, block) if block else f"{sign}{whole}.{digits}"


def _numeral(plain: str) -> Form | None:
    value = number_in_words(plain)
    return None if value is None else formula(str(value))


def _ratio(text: str) -> Form | None:
    """Read terms with a colon or `to` between them: `1:2:3`, `3 to 4`; two terms are a quotient."""
    terms = [trimmed(term) for term in split(text, frozenset((":", "to")))]
    if len(terms) < 2 or any(number_of(term) is None for term in terms):
        return None
    first = number_of(terms[0])
    if len(terms) == 2 or first is None or not (first.real or first.imaginary):
        return formula(":".join(terms))
    items = tuple(formula(f"({term})/({terms[0]})") for term in terms)
    return Group("ratio", items, latex=tight(":".join(terms)))


def _compound(text: str) -> Form | None:
    """Read amounts in several units side by side: `3 hours 20 minutes`."""
    parts = re.split(rf"(?<=[A-Za-z{CLOSE}]) *(?=[0-9])", text)
    if len(parts) < 2:
        return None
    amounts = [_quantity(part.strip()) for part in parts]
    if not all(
        isinstance(amount, Quantity) and amount.amount.number and not amount.unit.is_noun
        for amount in amounts
    ):
        return None
    return Group("list", tuple(amount for amount in amounts if amount), latex=tight(latex_of(text)))


def _ordinal(text: str) -> Form | None:
    match = _ORDINAL.fullmatch(text)
    return Quantity(formula(match[1]), Unit("ordinal")) if match else None


def _clock(plain: str) -> Form | None:
    """Read a time of day; a leading zero, a.m. or p.m. shows that it is not a ratio."""
    match = _CLOCK.fullmatch(plain)
    if match is None:
        return None
    zero, hour, minutes, seconds, *halves = match.groups()
    half = next((f"{letter.lower()}m" for letter in halves if letter), None)
    if not (zero or half):
        return None
    return Clock(hour, f":{minutes or '00'}{seconds or ''}", half)


def _based(plain: str) -> Form | None:
    """Read digits with their base: `1011_2`, `4210 base five`."""
    match = _BASE_SUFFIX.fullmatch(plain) or _BASE_WORDS.fullmatch(plain)
    if match is None:
        return None
    digits, base = filter(None, match.groups())
    number = int(base) if base.isdigit() else NUMBER_WORDS.get(base, 0)
    sign = "-" if digits.startswith("-") else ""
    digits = digits.removeprefix("-").upper()
    if not any(character.isdigit() for character in digits):
        return None
    if not 2 <= number <= 36 or any(int(digit, 36) >= number for digit in digits.replace(".", "")):
        return Words(compact(plain)) if digits.isdigit() else None  # `66_6`
    return Based(sign + (digits.lstrip("0") or "0"), number)


def _money(text: str, match: re.Match[str]) -> Form | None:
    """Read an amount after the sign of a currency, which `match` of `_CURRENCY` found."""
    name = currency(unmarked(match[2]).removeprefix("\\"))
    rest = single_value(match[1] + _PER.sub("", text[match.end() :]))
    amount, unit = (rest.amount, rest.unit) if isinstance(rest, Quantity) else (rest, Unit(""))
    if not isinstance(amount, Formula) or amount.number is None or unit.is_noun:
        return None
    if unit.name not in ("", name):
        name = f"{name} {unit.name}"
    return Quantity(amount, Unit(name))


def _quantity(text: str) -> Form | None:
    match = _CURRENCY.match(text)
    if match:
        return _money(text, match)
    match = _IN_PARENTHESES.fullmatch(text)
    if match:
        return _with_unit(text, match[1], match[2] or match[3], spaced=True)
    for place, depth, token in scanned(text):
        marked = token.startswith(OPEN)
        if depth or not (marked or (token.isalpha() and token.isascii()) or token in _UNIT_SIGNS):
            continue
        if not place:
            if marked or len(token) > 1:
                return _spelled_amount(text)
            continue
        head = text[:place].rstrip()
        tail = text[place:]
        found = _with_unit(text, head, tail, spaced=text[place - 1] == " ")
        if found is not None:
            return found
        if marked:
            return None
    return None


def _spelled_amount(text: str) -> Form | None:
    """Read an amount in words, such as `four dollars`, but no other words."""
    first, _, rest = unmarked(text).partition(" ")
    value = number_in_words(first)
    if value is None or not rest:
        return None
    return _with_unit(
        text, str(value), "".join(f"{OPEN}{word}{CLOSE} " for word in rest.split()).strip(), spaced=True
    )


def _with_unit(text: str, head: str, tail: str, *, spaced: bool) -> Form | None:
    head = head.removesuffix(r"\cdot").removesuffix(r"\times").removesuffix("-").rstrip()
    if not head or _is_text(head) or has_relation(head) or _OF_ANGLES.search(head):
        return None
    amount = formula(head)
    unit = unit_of(tail.replace(r"\$", "$"), amount.number.real if amount.number else None, spaced)
    if unit is None or not _fits(unit, amount, tail, spaced=spaced):
        return None
    if unit.scale > 1:
        amount = formula(f"({head}) \\times {unit.scale}")
    if not unit.name:
        return amount
    is_unit = unit.certain and len(unmarked(tail)) > 1 and (spaced or OPEN in tail)
    return Quantity(amount, unit, None if is_unit else formula(unmarked(text)))


def _fits(unit: Unit, amount: Formula, tail: str, *, spaced: bool) -> bool:
    """Check that the words behind an amount are its unit, and neither a variable nor another word."""
    letters = unmarked(tail)
    if amount.number is None:
        return unit.certain and not unit.is_noun and unit.scale == 1
    if not unit.certain and len(letters) == 1 and letters not in PLAIN_LETTERS:
        return False
    return not unit.is_noun or OPEN in tail or spaced


def _is_text(text: str) -> bool:
    """Return whether the text has words or signs that no formula has, or numbers side by side."""
    if _CAPITALS.fullmatch(text):
        return True
    has_matrix = r"\begin" in text
    bare = re.sub(rf"[_^] ?(?:\{{[^{{}}]*\}}|{OPEN}[^{CLOSE}]*{CLOSE}|[0-9A-Za-z])", "", text)
    bare = re.sub(r"\\(?:operatorname|mathbb|begin|end) ?\{[^{}]*\}", "", bare).replace(
        f"{OPEN}degree{CLOSE}", ""
    )
    if (_ADJACENT.search(bare) and not has_matrix) or bare.count("|") % 2:
        return True
    tokens = [token for _, _, token in scanned(bare)]
    if any(map(_is_textual, tokens)):
        return True
    return not has_matrix and any(token in '?&#@;"' for token in tokens)


def _is_textual(token: str) -> bool:
    if token.startswith(OPEN):
        return len(unmarked(token)) > 1
    if token.startswith("\\"):
        return token[1:] not in _COMMANDS and token not in (r"\{", r"\}", r"\|", r"\\")
    return token.isalpha() and (not token.isascii() or _is_word(token) or token.lower() in _JOINING)


def _is_word(run: str) -> bool:
    """Return whether letters in a row are a word, and not a product of variables."""
    letters = set(run.lower())
    if len(run) < 3 or (run.isupper() and len(run) < 5):
        return False
    vowels = letters & _VOWELS
    return (
        len(run) > 3 or len(set(run)) < 3 or bool(vowels - {"a"}) or bool(vowels and not letters <= _FACTORS)
    )


def _letters(text: str) -> str:
    text = re.sub(r"\\(?:overline|overrightarrow|angle|triangle) ?(?:\{([A-Za-z ]*)\})?", r"\1", text)
    text = re.sub(r"^(?:an?|the) (?=[^ ]{3})", "", compact(text).casefold())
    text = re.sub(r"(?<=[0-9])(?:st|nd|rd|th)(?![a-z])", "", text)
    if _CAPITALS.fullmatch(text.upper()):
        text = text.removeprefix("(").removesuffix(")").replace(" ", "")
    return text.rstrip(".")


def has_relation(text: str, signs: Collection[str] = _RELATIONS) -> bool:
    """Check whether a text has one of `signs` outside all brackets.

    By default, `signs` are signs of comparison or membership.
    """
    return any(not depth and token in signs for _, depth, token in scanned(text))


def ascending(latex: str) -> str:
    r"""Rewrite a chain of > and ≥ in ascending order: `3>x\ge 1` becomes `1\le x<3`."""
    turned = {">": "<", r"\ge": r"\le "}
    signs = [token for _, depth, token in scanned(latex) if not depth and token in _RELATIONS]
    if not signs or not all(sign in turned for sign in signs):
        return latex
    parts = split(latex, frozenset(turned))
    pieces = [parts[-1].strip()]
    for part, sign in zip(parts[-2::-1], reversed(signs), strict=True):
        pieces += (turned[sign], part.strip())
    return tight("".join(pieces))
