r"""Units, currencies, scales and counted nouns after a number.

Units are compared by name and power, never converted: `5 m` is not `500 cm`.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from .latex import CLOSE, OPEN, unmarked

_NAMES = """
meter: m meter meters metre metres | centimeter: cm cms centimeter centimeters centimetre centimetres
millimeter: mm millimeter millimeters millimetre millimetres
kilometer: km kms kilometer kilometers kilometre kilometres
decimeter: dm decimeter decimeters decimetre decimetres | nanometer: nm nanometer nanometers nanometre nanometres
micrometer: µm μm um micron microns micrometer micrometers | inch: in inch inches | foot: ft foot feet
yard: yd yds yard yards | mile: mi mile miles | angstrom: Å angstrom angstroms | parsec: pc parsec parsecs
au: AU | acre: acre acres | hectare: ha hectare hectares
gram: g gm gms gram grams | kilogram: kg kgs kilogram kilograms | milligram: mg milligram milligrams
pound: lb lbs pound pounds £ gbp | ounce: oz ounce ounces | ton: ton tons | tonne: tonne tonnes
second: s sec secs second seconds | millisecond: ms millisecond milliseconds
microsecond: µs μs microsecond microseconds
minute: min mins minute minutes | hour: h hr hrs hour hours | day: day days | week: week weeks
month: month months | year: yr yrs year years
liter: L l liter liters litre litres | milliliter: mL ml milliliter milliliters millilitre millilitres
gallon: gal gallon gallons | quart: qt quart quarts | pint: pt pint pints | cup: cup cups
tablespoon: tbsp tablespoon tablespoons | teaspoon: tsp teaspoon teaspoons
degree: degree degrees deg degs ° | radian: rad rads radian radians | celsius: celsius ℃ | fahrenheit: fahrenheit ℉
kelvin: K kelvin kelvins
newton: N newton newtons | joule: J joule joules | kilojoule: kJ kilojoule kilojoules | calorie: cal calorie calories
kilocalorie: kcal kilocalorie kilocalories | erg: erg ergs | electronvolt: eV | kiloelectronvolt: keV
megaelectronvolt: MeV | watt: W watt watts | kilowatt: kW kilowatt kilowatts | megawatt: MW megawatt megawatts
kilowatt-hour: kWh | pascal: Pa pascal pascals | kilopascal: kPa kilopascal kilopascals | atmosphere: atm atmospheres
bar: bar bars | psi: psi | dyne: dyn dyne dynes
volt: V volt volts | millivolt: mV millivolt millivolts | ampere: A amp amps ampere amperes
milliampere: mA milliampere milliamperes | ohm: Ω ohm ohms | coulomb: C coulomb coulombs | farad: F farad farads
tesla: T tesla teslas | weber: Wb weber webers | henry: henry henries | hertz: Hz hertz | kilohertz: kHz kilohertz
megahertz: MHz megahertz | gigahertz: GHz gigahertz | mole: mol mole moles | candela: cd candela
byte: byte bytes | bit: bit bits | decibel: dB decibel decibels
dollar: $ dollar dollars usd | euro: € euro euros eur | cent: ¢ cent cents | yen: ¥ yen jpy
rupee: ₹ rupee rupees inr rs | yuan: yuan cny rmb | franc: franc francs chf | peso: peso pesos
unit: unit units | percent: percent percents pct percentage
"""
_COMPOUND = {
    "mph": {"mile": 1, "hour": -1}, "kmh": {"kilometer": 1, "hour": -1}, "kmph": {"kilometer": 1, "hour": -1},
    "kph": {"kilometer": 1, "hour": -1}, "rpm": {"revolution": 1, "minute": -1}, "cc": {"centimeter": 3},
    "fps": {"foot": 1, "second": -1},
}  # fmt: skip
_UNITS: dict[str, str] = {}
for _entry in re.split(r"[|\n]", _NAMES.strip()):
    _name, _, _spellings = _entry.partition(":")
    _UNITS |= dict.fromkeys(_spellings.split(), _name.strip())
_LOWER = {spelling.lower(): name for spelling, name in _UNITS.items() if len(spelling) > 2}
_LOWER |= {spelling: name for spelling, name in _UNITS.items() if spelling.islower()}
_PRODUCTS = frozenset(("cd", "nm", "ms", "mg", "pc", "pt", "ha", "mi", "in", "mm"))
"""Units that, written without a space, are more often a product of two variables."""
PLAIN_LETTERS = frozenset("msghlLNJWVAK")
"""Single letters that may be a unit after a number without `\\text`."""
SCALES = {
    "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
    "lakh": 10**5, "crore": 10**7,
}  # fmt: skip
_TO_TWENTY = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen twenty
"""
NUMBER_WORDS = {word: number for number, word in enumerate(_TO_TWENTY.split())} | {
    "thirty": 30,
    "forty": 40,
    "fifty": 50,
    "sixty": 60,
    "seventy": 70,
    "eighty": 80,
    "ninety": 90,
}

_FRACTIONS = {
    "half": 2, "halve": 2, "third": 3, "fourth": 4, "quarter": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8,
    "ninth": 9, "tenth": 10,
}  # fmt: skip
_DIGIT = "|".join(word for word, number in NUMBER_WORDS.items() if 0 < number < 10)
_BELOW_HUNDRED = (
    rf"(?:(?:{'|'.join(word for word, number in NUMBER_WORDS.items() if number >= 20)})[ -](?:{_DIGIT})"
    + (rf"|{'|'.join(sorted(NUMBER_WORDS, key=len, reverse=True))})")
)
_BELOW_THOUSAND = rf"(?:(?:{_DIGIT}) hundred(?: (?:and )?{_BELOW_HUNDRED})?|{_BELOW_HUNDRED})"
_IN_WORDS = re.compile(
    rf"(?:({_BELOW_THOUSAND}) million ?)?(?:({_BELOW_THOUSAND}) thousand ?)?({_BELOW_THOUSAND})?"
)
_FRACTION_IN_WORDS = re.compile(rf"({_BELOW_HUNDRED})[ -]({'|'.join(_FRACTIONS)})s?")

_NO_NOUNS_TEXT = """
perhaps always sometimes besides unless thus plus minus less yes this is was has does its as versus whereas
afterwards towards upwards downwards backwards forwards otherwise nevertheless nonetheless guess alas equals
means says seems looks gives unknowns others halves thirds quarters fourths fifths sixths sevenths eighths
ninths tenths hundredths thousandths thousands millions billions trillions hundreds dozens guesses answers
options choices cases possibilities alternatives
"""
_NO_NOUNS = frozenset(_NO_NOUNS_TEXT.split()) | {word + "s" for word in NUMBER_WORDS} | {"sixes"}  # fmt: skip
_PLURALS_TEXT = """
people children men women mice geese teeth dice oxen fish sheep deer feet persons cattle vertices indices
matrices radii foci data points criteria polyhedra
"""
_PLURALS = frozenset(_PLURALS_TEXT.split())
_NO_MODIFIERS_TEXT = """
a an and are as at but by else even for from if in instead is may maybe might more most nor not no of on
only or otherwise per perhaps plausibly possibly probably presumably rather some than that the then to
unless versus when where which while with without yet approximately about around nearly almost roughly
"""
_NO_MODIFIERS = frozenset(_NO_MODIFIERS_TEXT.split()) | frozenset(NUMBER_WORDS)
_JUDGMENTS_TEXT = """
unsure uncertain unclear unlikely likely wrong incorrect correct right false true unknown undefined invalid impossible
possible probable plausible doubtful questionable ambiguous rounded estimated assumed approximate tentative
"""
_JUDGMENTS = frozenset(_JUDGMENTS_TEXT.split())
_TOKEN = re.compile(
    rf"(?P<word>{OPEN}[^{CLOSE}]*{CLOSE}|[A-Za-zµμÅ]+|[°$€£¥₹¢Ω℃℉]|\\Omega(?![A-Za-z])|\\AA(?![A-Za-z]))"
    r"|\^(?P<power>-?[0-9]+|\{ ?-? ?[0-9]+ ?\})|(?P<by>/)|(?P<times>\\cdot(?![A-Za-z])|\\times(?![A-Za-z])|\*)"
    r"|(?P<gap> +)|(?P<other>.)",
    re.DOTALL,
)
_TOTAL = re.compile(rf" *{OPEN}?(?:(?:in{CLOSE}? {OPEN}?)?total|altogether|each){CLOSE}?$")
_MEASURED = re.compile(
    rf" *{OPEN}?(?:old|long|tall|high|wide|deep|away|apart|later|ago"
    rf"|(?:in|of){CLOSE}? {OPEN}?(?:length|width|height|depth|age|area|volume)){CLOSE}?$"
)
"""Words for the measured quantity after its unit: `years old`, `cm in length`."""
_DENOMINATOR = re.compile(r"/ ?\(([^()]*)\)")
_FACTOR_SIGN = re.compile(rf" ?(?:\\cdot|\\times|\*| ) ?(?={OPEN}|[A-Za-z])")
_DETERMINERS = frozenset(("the", "a", "an", "her", "his", "their", "its", "each", "every"))
_PREPOSITIONS = frozenset(("of", "per", "in", "on", "at", "from"))


def number_in_words(text: str) -> Fraction | None:
    """Read a number or a fraction in words; return None if the text is anything else.

    >>> [str(number_in_words(text)) for text in ("Twenty-five", "one hundred and six", "three fourths", "five six")]
    ['25', '106', '3/4', 'None']
    """
    text = {"half": "one half", "a half": "one half", "a quarter": "one quarter"}.get(
        text.lower(), text.lower()
    )
    found = _FRACTION_IN_WORDS.fullmatch(text)
    if found:
        return Fraction(_below_thousand(found[1]), _FRACTIONS[found[2]])
    found = _IN_WORDS.fullmatch(text) if text else None
    if found is None:
        return None
    millions, thousands, rest = (_below_thousand(part or "") for part in found.groups())
    return Fraction(10**6 * millions + 1000 * thousands + rest)


def _below_thousand(words: str) -> int:
    value = 0
    for word in re.findall("[a-z]+", words):
        value = 100 * value if word == "hundred" else value + NUMBER_WORDS.get(word, 0)
    return value


def currency(sign: str) -> str:
    """Return the name of a currency by its sign or code.

    >>> currency("$"), currency("GBP"), currency("Rs")
    ('dollar', 'pound', 'rupee')
    """
    return _UNITS[sign.lower()]


@dataclass(frozen=True)
class Unit:
    """A unit, or a noun that is counted."""

    name: str
    """Canonical name, such as `kilometer hour^-1`."""
    is_noun: bool = False
    certain: bool = True
    """False if the letters might as well be variables, as in `5m`."""
    scale: int = 1
    """Factor of `thousand`, `million`, … before the unit."""

    def agrees(self, other: "Unit") -> bool:
        """Return whether two stated units are equal. Counted nouns are equal if they share a word.

        For example, `integers` and `distinct integers` are equal.
        """
        if self.is_noun and other.is_noun:
            return bool(_stems(self.name) & _stems(other.name))
        return not (self.is_noun or other.is_noun) and self.name == other.name


def _stems(name: str) -> set[str]:
    return {word.removesuffix("s").removesuffix("e") for word in name.split()}


def unit_of(tail: str, amount: Fraction | None, spaced: bool) -> Unit | None:
    r"""Read the text after a number: scales, then a unit or a counted noun; return None for other texts.

    Args:
        tail: Text with words of `\text{…}` between the characters `OPEN` and `CLOSE`.
        amount: The number, if known: a singular noun requires 1.
        spaced: Whether a space precedes the tail.

    >>> [unit_of(tail, None, True).name for tail in ("cm^2", "square cm", "miles per hour", "red apples")]
    ['centimeter^2', 'centimeter^2', 'hour^-1 mile', 'red apples']
    >>> unit_of("perhaps", None, True), unit_of("or 5", None, True), unit_of("thousand", None, True).scale
    (None, None, 1000)
    """
    words = re.sub(rf"({OPEN}?)per(?:{CLOSE}? {OPEN}?)cent", r"\1percent", tail.strip())
    scale = 1
    if _TOTAL.fullmatch(words):
        return Unit("")
    words = _MEASURED.sub("", _TOTAL.sub("", words))
    words = _DENOMINATOR.sub(lambda match: "/" + _FACTOR_SIGN.sub("/", match[1].strip()), words)
    while match := re.match(rf"({OPEN}?)([A-Za-z]+)({CLOSE}?)\s*", words):
        factor = SCALES.get(match[2].lower())
        if factor is None or bool(match[1]) != bool(match[3]):
            break
        scale *= factor
        words = words[match.end() :]
    if not words:
        return Unit("", scale=scale) if scale > 1 else None
    powers = _powers(words)
    if powers is not None:
        name = " ".join(
            unit if power == 1 else f"{unit}^{power}" for unit, power in sorted(powers.items()) if power
        )
        return Unit(name, certain=scale > 1 or _certain(words, spaced), scale=scale)
    noun = _noun(words, amount if scale == 1 else None)
    return None if noun is None else Unit(noun, is_noun=True, scale=scale)


def _powers(text: str) -> dict[str, int] | None:  # noqa: PLR0912
    """Return unit → power; None if the text is not a unit."""
    text = re.sub(r"\b(sq|cu|hr|min|sec|lb|ft|in|yd|oz|km|cm)\.", r"\1", text.replace(f"{CLOSE}.", CLOSE))
    powers: dict[str, int] = {}
    factor = 1
    prefix = 1
    last = ""
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind == "gap":
            continue
        if kind == "power" and last:
            power = int(token["power"].strip("{} ").replace(" ", ""))
            for unit in last.split():
                powers[unit] *= power
            last = ""
        elif kind == "by" and powers:
            factor = -1
        elif kind == "times" and powers:
            last = ""
        elif kind == "word":
            word = unmarked(token["word"]).strip()
            if word.lower() == "per" and powers:
                factor = -1
            elif word.lower() in ("square", "sq", "squared"):
                prefix, last = (1, _raised(powers, last, 2)) if word.lower() == "squared" else (2, "")
            elif word.lower() in ("cubic", "cu", "cubed"):
                prefix, last = (1, _raised(powers, last, 3)) if word.lower() == "cubed" else (3, "")
            elif word in ("C", "F") and last == "degree":
                del powers["degree"]
                powers["celsius" if word == "C" else "fahrenheit"] = 1
            else:
                found = _unit(word)
                if found is None:
                    return None
                for unit, power in found.items():
                    powers[unit] = powers.get(unit, 0) + factor * prefix * power
                last = " ".join(found)
                factor = 1
                prefix = 1
        else:
            return None
    return powers if powers and factor == prefix == 1 else None


def _raised(powers: dict[str, int], last: str, power: int) -> str:
    for unit in last.split():
        powers[unit] *= power
    return ""


def _unit(word: str) -> dict[str, int] | None:
    word = {r"\Omega": "Ω", r"\AA": "Å"}.get(word, word)
    compound = _COMPOUND.get(word.lower())
    if compound is not None:
        return compound
    name = _UNITS.get(word) or _LOWER.get(word.lower() if len(word) > 2 else word)
    if name is None and len(word) == 2 and word.isupper():
        name = _LOWER.get(word.lower())
    return None if name is None else {name: 1}


def _certain(text: str, spaced: bool) -> bool:
    r"""Return whether letters can only be a unit: in `\text`, several letters, or a quotient (`m/s`)."""
    if OPEN in text or not text.isascii():
        return True
    runs = re.findall(r"[A-Za-z]+", text)
    if any(len(run) > 1 and (spaced or run not in _PRODUCTS) for run in runs):
        return True
    return spaced and len(runs) > 1 and "/" in text


def _noun(text: str, amount: Fraction | None) -> str | None:
    """Return one to three words, the last a plural; None for anything else.

    Hedges, conjunctions and numbers, for example, are not counted nouns.
    """
    words = unmarked(text).lower().split()
    place = next((place for place, word in enumerate(words) if word in _PREPOSITIONS), None)
    if place is not None:
        return _noun_phrase(words[:place], words[place], words[place + 1 :], amount)
    if not 1 <= len(words) <= 3 or not all(re.fullmatch(r"[a-z]{3,}(?:-[a-z]+)?", word) for word in words):
        return None
    *modifiers, noun = words
    if noun in _NO_NOUNS or any(
        word in _NO_MODIFIERS | _NO_NOUNS or word.endswith("ly") for word in modifiers
    ):
        return None
    plural = noun in _PLURALS or (
        len(noun) > 3 and noun.endswith("s") and not noun.endswith(("ss", "us", "is"))
    )
    singular = (
        amount in (1, -1) and noun + "s" not in _NO_NOUNS and noun not in _NO_MODIFIERS and noun not in SCALES
    )
    singular = singular and not noun.endswith("ly") and noun not in _JUDGMENTS
    return " ".join(words) if plural or singular else None


def _noun_phrase(
    counted: list[str], preposition: str, whole: list[str], amount: Fraction | None
) -> str | None:
    """Read `pieces of candy`, `students in the class`, `beats per minute` or `of the cake`.

    `of course` is not such a phrase.
    """
    determined = bool(whole) and whole[0] in _DETERMINERS
    named = whole[1:] if determined else whole
    if not 1 <= len(named) <= 3 or not all(
        word.isalpha() and word not in _NO_MODIFIERS | _NO_NOUNS for word in named
    ):
        return None
    if counted:
        return _noun(" ".join(counted), amount) if determined or preposition in ("of", "per") else None
    is_part = preposition == "of" and (determined or named in (["them"], ["these"], ["those"]))
    return " ".join(named) if is_part else None
