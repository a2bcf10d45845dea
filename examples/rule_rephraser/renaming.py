"""Other first names for the people of a problem, and other letters for its variables."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stories import Question

from tagrpo.rephrasing.texts import math_spans, prose


def _read(names: str) -> tuple[str, ...]:
    return tuple(names.split())


_FEMALE = _read(
    "Abigail Alice Alicia Amanda Amelia Amy Andrea Angela Anna Anne Annie Audrey Ava Barbara Becky Betty Brenda "
    "Carla Carmen Carol Caroline Catherine Cecilia Chloe Christina Cindy Clara Claire Cynthia Danielle Deborah "
    "Debra Diana Donna Elena Elizabeth Ella Ellen Emily Emma Erica Erin Eva Fiona Gina Gloria Hannah Heather Helen "
    "Irene Isabella Jane Janet Janice Jasmine Jenna Jennifer Jenny Jessica Joan Joanna Judy Julia Julie Karen Kate "
    "Katherine Kathy Katie Kayla Kelly Kim Kimberly Laura Lauren Leah Lena Linda Lisa Lucy Madison Maggie Margaret "
    "Maria Martha Mary Megan Melanie Melissa Mia Michelle Molly Monica Nancy Natalia Natalie Natasha Nicole Nina "
    "Nora Olivia Pamela Patricia Paula Rachel Rebecca Rita Samantha Sandra Sara Sarah Sharon Sophia Sophie Stella "
    "Stephanie Susan Tanya Tara Teresa Tina Valerie Vanessa Veronica Victoria Wendy Yolanda Zoe "
)
_MALE = _read(
    "Aaron Adam Alan Albert Alfred Andrew Andy Anthony Antonio Arthur Benjamin Bernard Bob Bobby Brandon Brian "
    "Bruce Bryan Carl Carlos Charles Charlie Christopher Daniel Danny Darren David Dennis Derek Donald Douglas "
    "Edward Eric Ethan Eugene Felix Fred Frederick Gabriel Gary George Gerald Greg Gregory Harold Harry Henry Ian "
    "Isaac Ivan Jacob Jake James Jason Jeff Jeffrey Jeremy Jerry Jim Jimmy Joe Joel John Johnny Jonathan Joseph "
    "Joshua Juan Justin Keith Kenneth Kevin Kyle Larry Leo Leonard Liam Lucas Luis Luke Marcus Mario Martin "
    "Matthew Michael Mike Nathan Neil Nicholas Noah Oliver Oscar Patrick Paul Peter Philip Ralph Randy Raymond "
    "Ricardo Richard Robert Roger Ronald Roy Ryan Samuel Scott Sean Simon Stanley Stephen Steve Steven Stuart "
    "Theodore Thomas Timmy Timothy Todd Tom Tommy Tony Travis Trevor Tyler Victor Vincent Walter Wayne William "
    "Zachary "
)
_WORD = re.compile(r"[A-Za-z]+")


def rename_people(question: Question) -> str | None:
    """Give every person of the problem another first name, one that suits the pronouns.

    Known first names only; those that are also words, months, places or used for either sex are not among them. Nothing
    is renamed where a name is part of a longer one (`Kevin Kangaroo`), stands in a formula or in the answer, is written
    beside a form of it that would stay (`Toms`), or where a single capital letter may stand for a person.

    >>> rename_people(Question.of("Tom has 3 cats. Tom's sister Anna has 2. How many cats do they have?"))
    "Raymond has 3 cats. Raymond's sister Nina has 2. How many cats do they have?"
    >>> rename_people(Question.of("Kevin Kangaroo hops 3 times. How far does he get?"))
    """
    text, answer, rng = question.text, question.answer, question.rng
    found = list(dict.fromkeys(word for word in _WORD.findall(text) if word in _KNOWN))
    if not found or any(_unsafe(name, text, answer) for name in found):
        return None
    if re.search(r"(?<![A-Za-z'’$\\])(?!A\b|I\b)[A-Z](?![A-Za-z])", text):
        return None
    used, new = set(_WORD.findall(text)), {}
    for name in found:
        pool = _FEMALE if name in _FEMALE else _MALE
        new[name] = rng.choice([other for other in pool if other not in used])
        used.add(new[name])
    return _WORD.sub(lambda match: new.get(match[0], match[0]), text)


_KNOWN = frozenset(_FEMALE) | frozenset(_MALE)


def _unsafe(name: str, question: str, answer: Sequence[str]) -> bool:
    if any(name.lower() in text.lower() for text in answer):
        return True
    # Other words that begin with it: Toms, Tomson, Annabel, tom.
    if any(word != name and word.lower().startswith(name.lower()) for word in _WORD.findall(question)):
        return True
    places = re.finditer(rf"\b{name}\b", question)
    return any(_part_of_more(question[: match.start()], question[match.end() :]) for match in places)


def _part_of_more(before: str, after: str) -> bool:
    """Whether a name between these texts is part of a longer name, or of a formula."""
    if re.match(r"(?:['’]s)?\s+[A-Z][a-z]|[-.&@_\d]\w|\s+[A-Z]\.", after):
        return True  # Kevin Kangaroo, Tom's Diner, Anna-Lena, John F.
    if before.count("{") != before.count("}") or before.endswith(("\\", "$")):
        return True
    previous = re.search(r"([A-Z][a-z]*\.?)\s+\Z", before)
    if previous is None:
        return False
    return previous[1] in _TITLES or not _begins_sentence(before[: previous.start()])


_TITLES = (
    "Mr.",
    "Mrs.",
    "Ms.",
    "Dr.",
    "St.",
    "King",
    "Queen",
    "Lake",
    "San",
    "Santa",
    "Mount",
    "Uncle",
    "Aunt",
)


def _begins_sentence(before: str) -> bool:
    return not before.strip() or before.rstrip()[-1] in '.?!:"”'


_LETTER = re.compile(r"\\[A-Za-z]+|[A-Za-z]+")
_RENAMED = "xyznkabc"
"""Letters that are nearly always variables. Others are units (m, g, s, t), constants (e, i), functions (f, g, h)."""
_NEW = "uvwpqrst"
_CONVENTION = re.compile(
    r"ax[ei]s\b|intercept|coordinate|plane|graph|parabola|ellipse|hyperbola|circle|slope|vertex|triangle|polygon|quadrilateral|"
    r"square|rectangle|angle|sides?\b|base\b|digit|\bpolar|cylind|spher|complex|vector|matri|function|inverse|degree|"
    r"derivative|integral|\bline|point|variable|letter|in terms of|form\b|polynomial",
    re.IGNORECASE,
)
"""Where letters have a conventional meaning, or the answer may have to name them."""
_TEXT = re.compile(r"\\(?:text|mbox|mathrm|operatorname)\*?\s*\{[^{}]*\}")


def rename_variables(question: Question) -> str | None:
    r"""Give one or several variables other letters.

    Only letters that stand in formulas and nowhere else, that the answer does not hold, and whose every occurrence is a
    variable beyond doubt: alone, or in a product of letters that occur alone as well. Nothing is renamed in problems of
    geometry or calculus or about coordinates, digits, functions and polynomials, where letters have a meaning.

    >>> rename_variables(Question.of("If $x = 3$, what is the value of $2x + 3$?", ("9",)))
    'If $s = 3$, what is the value of $2s + 3$?'
    >>> rename_variables(Question.of("Expand $(x+1)^2$.", ("x^2+2x+1",)))
    """
    text = question.text
    if _CONVENTION.search(text) or "[asy]" in text or "\\begin" in text:
        return None
    formulas = [_TEXT.sub("", span[0]) for span in math_spans(text)]
    runs = [run for formula in formulas for run in _LETTER.findall(formula) if not run.startswith("\\")]
    alone = {run for run in runs if len(run) == 1}
    letters = {letter for run in runs for letter in run}
    if any(len(run) > 1 and not set(run) <= alone for run in runs):
        return None  # mod, cm, gcd without a command, or labels such as ABC
    outside = set(re.findall(r"(?<![A-Za-z'’])[A-Za-z](?![A-Za-z])", prose(text))) - {"a", "A", "I"}
    worded = {letter for words in _TEXT.findall(text) for letter in re.findall(r"\b[A-Za-z]\b", words)}
    answered = {
        a for answer in question.answer for run in _LETTER.findall(answer) if run[0] != "\\" for a in run
    }
    if outside or answered & letters:
        return None
    old = [letter for letter in _RENAMED if letter in alone and letter not in worded]
    free = [letter for letter in _NEW if letter not in letters | worded and letter.upper() not in letters]
    if not old or len(free) < len(old):
        return None
    names = dict(zip(old, sorted(question.rng.sample(free, len(old))), strict=True))
    for span in reversed(math_spans(text)):
        text = text[: span.start()] + _renamed(span[0], names) + text[span.end() :]
    return text


def _renamed(formula: str, names: dict[str, str]) -> str:
    """The formula with every letter outside of commands and texts looked up in `names`."""

    def replace(match: re.Match[str]) -> str:
        token = match[0]
        return token if token.startswith("\\") else "".join(names.get(letter, letter) for letter in token)

    return re.sub(rf"{_TEXT.pattern}|{_LETTER.pattern}", replace, formula)
