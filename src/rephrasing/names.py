"""Other first names for the people of a problem."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .sentences import Problem


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


def rename_people(problem: Problem) -> str | None:
    """Give every person of the problem another first name, one that suits the pronouns.

    Known first names only; those that are also words, months, places or used for either sex are not among them. Nothing
    is renamed where a name is part of a longer one (`Kevin Kangaroo`), stands in a formula or in the answer, is written
    beside a form of it that would stay (`Toms`), or where a single capital letter may stand for a person.

    >>> rename_people(Problem.of("Tom has 3 cats. Tom's sister Anna has 2. How many cats do they have?"))
    "Raymond has 3 cats. Raymond's sister Nina has 2. How many cats do they have?"
    >>> rename_people(Problem.of("Kevin Kangaroo hops 3 times. How far does he get?"))
    """
    question, answer, rng = problem.question, problem.answer, problem.rng
    found = list(dict.fromkeys(word for word in _WORD.findall(question) if word in _KNOWN))
    if not found or any(_unsafe(name, question, answer) for name in found):
        return None
    if re.search(r"(?<![A-Za-z'’$\\])(?!A\b|I\b)[A-Z](?![A-Za-z])", question):
        return None
    used, new = set(_WORD.findall(question)), {}
    for name in found:
        pool = _FEMALE if name in _FEMALE else _MALE
        new[name] = rng.choice([other for other in pool if other not in used])
        used.add(new[name])
    return _WORD.sub(lambda match: new.get(match[0], match[0]), question)


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


_TITLES = ("Mr.", "Mrs.", "Ms.", "Dr.", "St.", "King", "Queen", "Lake", "San", "Santa", "Mount", "Uncle", "Aunt")


def _begins_sentence(before: str) -> bool:
    return not before.strip() or before.rstrip()[-1] in '.?!:"”'
