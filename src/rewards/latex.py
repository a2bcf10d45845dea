r"""Cleaned LaTeX of an answer: one spelling for formulas that print alike, and the places of its parts.

Words of `\text{…}` are put between the characters `OPEN` and `CLOSE`, which distinguishes a unit in `\text`
from a product of variables. Answers are untrusted: no function raises on them or backtracks. The cost is
proportional to the length.
"""

import re
from collections.abc import Callable, Iterator

OPEN = "\x02"
CLOSE = "\x03"

_SYMBOLS = {
    "‐": "-", "‑": "-", "‒": "-", "–": "-", "—": "-", "−": "-", "﹣": "-", "－": "-", "×": r"\times ", "·": r"\cdot ",
    "∙": r"\cdot ", "⋅": r"\cdot ", "÷": r"\div ", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ",
    "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ", "∓": r"\mp ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ",
    "∅": r"\emptyset ", "√": r"\sqrt ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ",
    "½": r"\frac{1}{2}",
    "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "²": "^{2}", "³": "^{3}",
    "…": r"\ldots ", "“": '"', "”": '"', "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u2003": " ",
    "\u200b": "", "∠": r"\angle ", "△": r"\triangle ", "º": "°", "˚": "°", "∶": ":", "ℝ": r"\mathbb{R}",
}  # fmt: skip
_TRANSLATED = str.maketrans(_SYMBOLS) | str.maketrans("０１２３４５６７８９", "0123456789")
_BRACED = r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}"
_CONTENT = rf"[^{{}}]*(?:{_BRACED}[^{{}}]*)*"
"""Text with braces two levels deep, such as `\\frac{m}{s^{2}}`."""
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|normal|sf|tt|up)?|mbox|hbox|mathrm|mathsf|mathit|mathtt|rm|emph)(?![A-Za-z])"
    rf"\s*\{{({_CONTENT})\}}"
    r"|\{\s*\\(?:rm|bf|it|sf)(?![A-Za-z])([^{}]*)\}"
)
_BOLD = re.compile(
    r"\\(?:(?:mathbf|boldsymbol|bm|mathcal|underline|displaystyle)(?![A-Za-z])|textcolor\s*\{[^{}]*\})"
    rf"\s*\{{({_CONTENT})\}}"
)
_VECTOR = re.compile(r"\\vec(?![A-Za-z])\s*(?:\{\s*([A-Za-z])\s*\}|([A-Za-z]))")
_UNIT_FRACTION = re.compile(rf"\\frac ?\{{ ?({OPEN}{_CONTENT})\}} ?\{{ ?({OPEN}{_CONTENT})\}}")
_WORD = re.compile(f"{OPEN}[^{CLOSE}]*{CLOSE}|\\\\[A-Za-z]+|[^\\W\\d_]+")
_DEGREES = re.compile(
    r"\^\s*\{?\s*\\circ(?![A-Za-z])\s*\}?|\\(?:degree|textdegree)(?![A-Za-z])|°"
    r"|\^\s*\{?\s*\\(?:text|textrm|mathrm|mbox)\s*\{\s*o\s*\}\s*\}?|(?<=[0-9)])\^\s*(?:o|\{\s*o\s*\})(?![A-Za-z])"
)
_CHOOSE = r"\s*([^{}\\]+|\{[^{}]*\})\s*\\choose(?![A-Za-z])\s*([^{}\\]+|\{[^{}]*\})\s*"
_DIGITS = r"\{?\s*([0-9]+)\s*\}?"
_GROUPED = re.compile(r"(?<=[0-9])(?:\{[,\s]\}|,\\!|\\[,;: !]|~)\s?(?=[0-9]{3}(?![0-9]))")
_REWRITES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"\\(?:left|right|[bB]ig{1,2}[lrm]?)(?![A-Za-z])\.?"), ""),
    (re.compile(r"\\(?:displaystyle|textstyle|limits|bf|rm|it|nolimits|strut|hfill)(?![A-Za-z])"), " "),
    (re.compile(r"\\(?:tiny|small|normalsize|[lL]arge|LARGE|[hH]uge)(?![A-Za-z])"), " "),
    (re.compile(r"\\(?:hspace|vspace|kern|hskip|color|phantom|tag|label)\*?\s*\{[^{}]*\}"), " "),
    (
        re.compile(
            r"(?:\s|\\[,;: ])*(?:\\(?:checkmark|blacksquare|square|qed)(?![A-Za-z])|[✓✔✅∎■\ufe0f])+\s*\Z"
        ),
        "",
    ),
    (re.compile(r"\\(?:lvert|rvert|vert|mid)(?![A-Za-z])"), "|"),
    (re.compile(r"\\(?:lbrace)(?![A-Za-z])"), r"\\{"),
    (re.compile(r"\\(?:rbrace)(?![A-Za-z])"), r"\\}"),
    (re.compile(r"\\(?:[dtcsx]|nice)frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\frac ?([0-9]) ?([0-9])"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\[dt]binom(?![A-Za-z])"), r"\\binom"),
    (re.compile(r"\^ ?-([0-9]+)"), r"^{-\1}"),
    (re.compile(rf"\{{{_CHOOSE}\}}|\A{_CHOOSE}\Z"), lambda match: _binomial(*match.groups())),
    (re.compile(rf"(?:\{{\s*\}})?[_^]\s*{_DIGITS}\s*C\s*_\s*{_DIGITS}"), r"\\binom{\1}{\2}"),  # {}_{10}C_3
    (re.compile(r"(?<![A-Za-z\\])C ?\(([0-9]+), ?([0-9]+)\)"), r"\\binom{\1}{\2}"),
    (re.compile(r"\\lg(?![A-Za-z])"), r"\\log_{10}"),
    (re.compile(r"\\Bbb(?![A-Za-z])"), r"\\mathbb"),
    (re.compile(r"\\mathbb ?([A-Z])(?![A-Za-z])"), r"\\mathbb{\1}"),
    (re.compile(r"(\\mathbb ?\{R\}) ?(?:-|/|\\backslash(?![A-Za-z])) ?(?=\\\{)"), r"\1\\setminus "),
    (re.compile(r"\\colon(?![A-Za-z])"), ":"),
    (re.compile(r"(\\\\)|\\&"), lambda match: match[1] or f" {OPEN}and{CLOSE} "),
    (re.compile(r"(\.[0-9]+) ?(?:\.{3,}|\\[cl]?dots(?![A-Za-z]))"), r"\1\\ldots "),
    (re.compile(r"\\(?:leqslant|leq)(?![A-Za-z])|<="), r"\\le "),
    (re.compile(r"\\(?:geqslant|geq)(?![A-Za-z])|>="), r"\\ge "),
    (re.compile(r"\\lt(?![A-Za-z])"), "<"),
    (re.compile(r"\\gt(?![A-Za-z])"), ">"),
    (re.compile(r"\\neq(?![A-Za-z])|!=|\\not\s*="), r"\\ne "),
    (re.compile(r"\\(?:varnothing|O)(?![A-Za-z])"), r"\\emptyset "),
    (re.compile(r"\\(?:lor|vee)(?![A-Za-z])"), f" {OPEN}or{CLOSE} "),
    (re.compile(r"\\(?:land|wedge)(?![A-Za-z])"), f" {OPEN}and{CLOSE} "),
    (re.compile(r"\\(?:approxeq|simeq|thickapprox)(?![A-Za-z])"), r"\\approx "),
    (re.compile(r"(\\\\)|\\!"), r"\1"),
    (
        re.compile(r"(\\\\)|\\[,;: ]|~|\\q?quad(?![A-Za-z])|\\(?:enspace|thinspace|nobreak)(?![A-Za-z])"),
        r"\1 ",
    ),
    (re.compile(r"\\\\\s*\[[^\[\]]{0,12}\]"), r"\\\\"),
    (re.compile(r"\\?%"), f" {OPEN}percent{CLOSE}"),
    (re.compile(r"(?<![\\A-Za-z])(sqrt|pi|infty|theta|alpha|beta|sin|cos|tan|ln|log)(?![A-Za-z])"), r"\\\1 "),
    (re.compile(r"(?<![\\A-Za-z])(?:infinity|inf)(?![A-Za-z])"), r"\\infty "),
    (re.compile(r"\s+"), " "),
)
_MODULUS = re.compile(
    rf"\(? ?(?:\\[pb]?mod(?![A-Za-z])|{OPEN}mod{CLOSE}|(?<![A-Za-z\\])mod(?![A-Za-z])) ?"
    r"\{? ?([0-9]+|[a-z])(?![0-9a-z]) ?\}? ?\)?"
)
_LINES = re.compile(
    r"(?:\\\{ ?)?\\begin ?\{(aligned|align\*?|split|gathered|cases|array)\}(?:\{[clr]\})?(.*)\\end ?\{\1\}",
    re.DOTALL,
)
"""Pattern of formulas in lines below each other, perhaps after a brace."""
_RELATION = re.compile(r"[=<>]|\\(?:le|ge|in)(?![A-Za-z])")
_SCIENTIFIC = re.compile(r"(?<![A-Za-z\\])([0-9]+\.?[0-9]*|\.[0-9]+)[eE]([+-]?[0-9]+)(?!\.?[0-9A-Za-z])")
_SCANNED = re.compile(
    rf"\\begin(?![A-Za-z])|\\end(?![A-Za-z])|\\[A-Za-z]+|\\.|{OPEN}[^{CLOSE}]*{CLOSE}|[A-Za-z]+|.", re.DOTALL
)
_LATEX_TOKEN = re.compile(rf"\\[A-Za-z]+|\\.|{OPEN}[^{CLOSE}]*{CLOSE}|\s+|.", re.DOTALL)
_OPENING = frozenset(("(", "[", "{", r"\{", r"\langle", r"\begin", r"\lfloor", r"\lceil"))
_CLOSING = frozenset((")", "]", "}", r"\}", r"\rangle", r"\end", r"\rfloor", r"\rceil"))


def clean(text: str) -> str:
    r"""Spell an answer in one way: no layout, one name per symbol, ungrouped digits, marked words of `\text`.

    >>> clean(r"$\left(3,\;\dfrac12\right)$."), clean(r"10{,}000"), clean(r"5~\mathrm{cm}").encode()
    ('(3, \\frac{1}{2})', '10000', b'5 \x02cm\x03')
    """
    text = re.sub(r"[\x00-\x1f\x7f]", " ", text).translate(_TRANSLATED)
    text = _dollars(_unformatted(text.strip()))
    if r"\begin" not in text:
        text = re.sub(r"\\\\(?=[A-Za-z{}])", r"\\", text)  # escaped twice, as in JSON
    text = re.sub(r"(?<!\\)\\[()\[\]]", " ", text)
    text = _DEGREES.sub(f" {OPEN}degree{CLOSE} ", text)
    text = _VECTOR.sub(r"{\1\2}", text)
    for _ in range(3):
        text = _BOLD.sub(r"{\1}", text)
        text = _TEXT.sub(lambda match: f" {_marked(match[1] or match[2] or '')} ", text)
    text = _UNIT_FRACTION.sub(
        lambda match: f"{match[1]}/{match[2].strip().replace(' ' + OPEN, '/' + OPEN)}", text
    )
    while (grouped := _GROUPED.sub("", text)) != text:
        text = grouped
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = _SCIENTIFIC.sub(r"\1\\times 10^{\2}", text)
    if r"\equiv" in text or "≡" in text:
        text = _MODULUS.sub(r"\\pmod{\1}", text.replace("≡", r"\equiv "))
    return _unwrapped(_in_one_line(trimmed(text).rstrip("\\")))


def _in_one_line(text: str) -> str:
    r"""Spell `\begin{aligned} x &= 2+3 \\ &= 5 \end{aligned}` as `x = 2+3 = 5`, and equations as a list."""
    match = _LINES.fullmatch(text)
    if match is None:
        return text
    kind, content = match.groups()
    lines = [line.strip() for line in content.split(r"\\")]
    lines = [line for line in lines if line]
    if kind in ("cases", "array") and ("&" in content or not all(map(_RELATION.search, lines))):
        return text
    joined = ""
    for line in lines:
        bare = line.replace("&", "").strip().removesuffix(",")
        joined += f", {bare}" if joined and not bare.startswith(("=", r"\approx")) else bare
    return trimmed(joined)


def _binomial(*operands: str | None) -> str:
    r"""Spell the two operands of `\choose` as `\binom{…}{…}`."""
    above, below = (operand.strip(" {}") for operand in operands if operand is not None)
    return rf"\binom{{{above}}}{{{below}}}"


def trimmed(text: str) -> str:
    """Drop spaces, closing punctuation and a leading `=`."""
    return text.strip(" ,;:").removeprefix("=").lstrip().rstrip(" .,;:")


def _unformatted(text: str) -> str:
    """Drop Markdown's signs for bold, italics and code around the whole text."""
    for sign in ("**", "__", "*", "_", "`"):
        if len(text) > 2 * len(sign) and text.startswith(sign) and text.endswith(sign):
            text = text[len(sign) : -len(sign)].strip()
    return text


def _dollars(text: str) -> str:
    r"""Drop dollars that delimit formulas; keep a dollar that is a currency as `\$`."""
    parts = re.split(r"(?<!\\)\$", text)
    if len(parts) == 2 and re.match(r"\s*-?[0-9.]", parts[1]):
        return parts[0] + r"\$" + parts[1]
    return " ".join(parts)


def _marked(words: str) -> str:
    """Mark each word, except letters that are more often a constant or a name."""

    def mark(match: re.Match[str]) -> str:
        word = match[0]
        if word[0] in (OPEN, "\\"):
            return word
        if len(word) == 1 and (word in "eidx" or (word.isupper() and word not in "NJWVAKCFTLP")):
            return word
        return OPEN + word + CLOSE

    return _WORD.sub(mark, words)


def unmarked(text: str) -> str:
    """Drop the marks `OPEN` and `CLOSE` around words."""
    return text.replace(OPEN, "").replace(CLOSE, "")


def latex_of(text: str) -> str:
    r"""Replace words between the marks `OPEN` and `CLOSE` by LaTeX, such as `\text{word}`."""
    text = re.sub(f" ?{OPEN}degree{CLOSE}", r"^{\\circ}", text).replace(f"{OPEN}percent{CLOSE}", r"\%")
    return re.sub(f"{OPEN}([^{CLOSE}]*){CLOSE}", r"\\text{\1}", text).strip()


def tight(text: str) -> str:
    r"""Keep only the spaces that LaTeX needs: between a command and a letter, and between digits.

    >>> tight(r"\cos 2 t - \pi r"), tight("a b"), tight("1 2")
    ('\\cos2t-\\pi r', 'ab', '1 2')
    """
    kept: list[str] = []
    spaced = False
    for token in _LATEX_TOKEN.findall(text):
        if token.isspace():
            spaced = True
            continue
        before = kept[-1] if kept else ""
        in_command = before.startswith("\\") and before[-1].isalpha() and token[0].isalpha()
        in_number = spaced and before[-1:].isdigit() and token[0].isdigit()
        if in_command or in_number:
            kept.append(" ")
        kept.append(token)
        spaced = False
    return "".join(kept)


def scanned(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the place of each token, the number of brackets around it, and the token itself."""
    depth = 0
    for match in _SCANNED.finditer(text):
        token = match[0]
        if token in _CLOSING:
            depth = max(0, depth - 1)
        yield match.start(), depth, token
        if token in _OPENING:
            depth += 1


def split(text: str, separators: frozenset[str]) -> list[str]:
    """Split a text at separators outside all brackets; marks around words do not count."""
    parts = []
    start = 0
    for place, depth, token in scanned(text):
        if not depth and unmarked(token).lower() in separators:
            parts.append(text[start:place])
            start = place + len(token)
    return [*parts, text[start:]]


def bracketed(text: str) -> tuple[str, str, str] | None:
    """Return opening bracket, content and closing bracket; None if no pair encloses the whole text."""
    opening = next((bracket for bracket in _OPENING - {r"\begin"} if text.startswith(bracket)), None)
    if opening is None:
        return None
    for place, depth, token in scanned(text):
        if place and not depth and token in _CLOSING:
            whole = place + len(token) == len(text)
            return (opening, text[len(opening) : place].strip(), token) if whole else None
    return None


def _unwrapped(text: str) -> str:
    """Drop braces and boxes around the whole text."""
    for _ in range(4):
        inner = text.removeprefix(r"\boxed").removeprefix(r"\fbox").lstrip()
        if not inner.startswith("{"):
            break
        parts = bracketed(inner)
        if parts is None:
            break
        text = trimmed(parts[1])
    return text
