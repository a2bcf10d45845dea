"""What a model is told to do with a question: the instruction of the paper's Box 1, and three of its first version.

Words and examples are our own. `perturbation` says what Box 1 of TA-GRPO (Appendix A) says: reword the question from
several perspectives, by wording, format and order of information rather than by renaming variables. The others are the
three templates that the first version names: paraphrase, renaming of variables, change of format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """A way of rephrasing."""

    task: str
    """What to do, for one or several rephrasings."""
    examples: Sequence[tuple[str, str]]
    """(question, rephrasing)."""
    renames: bool = False
    """Whether variables and people may get other names, which the check of symbols then allows."""

    def system(self, count: int) -> str:
        """The system prompt that asks for `count` rephrasings of the question that follows."""
        wanted = "one rephrasing" if count == 1 else f"{count} rephrasings, each different from the others"
        shown = "\n\n".join(f"Question: {question}\nRephrased: {text}" for question, text in self.examples)
        return f"{self.task}\n\n{_RULES}\n\nExamples:\n\n{shown}\n\nWrite {wanted} of the question that follows."


_RULES = """\
Whatever you change, it must stay the same problem:
- every number, unit, formula and condition is kept, none is added, and figures given as code are copied unchanged;
- the same thing is asked for, in the same form (fraction, decimal, unit, number of digits, choice);
- a reader who sees only your version can solve it;
- nothing of the solution is given away: no intermediate result, no hint, no answer.
Do not solve the problem and do not comment on your work. Keep LaTeX as LaTeX."""

PLAIN_FORMAT = "Write each rephrasing between the tags <rephrasing> and </rephrasing>, and nothing outside of the tags."

INSTRUCTIONS: Mapping[str, Instruction] = {
    "perturbation": Instruction(
        task=(
            "You reword mathematical problems. Tell the question below from a different perspective: change its "
            "wording, its format or the order in which it gives its information. Renaming variables alone is too "
            "little."
        ),
        examples=[
            (
                "A tank holds 240 liters and is $\\frac{1}{4}$ full. A pump adds 12 liters per minute. After how many "
                "minutes is the tank full?",
                "How many minutes does a pump that delivers 12 liters per minute need to fill a tank of 240 liters, "
                "given that $\\frac{1}{4}$ of the tank is filled when it starts?",
            ),
            (
                "If $3a + b = 10$ and $a - b = 2$, what is the value of $ab$?",
                "Two numbers $a$ and $b$ satisfy both $a - b = 2$ and $3a + b = 10$. Determine their product $ab$.",
            ),
            (
                "Compute the sum of all positive divisors of $28$.",
                "What do you get when you add up every positive integer that divides $28$?",
            ),
            (
                "Mia reads 15 pages on each school day and 30 pages on each day of the weekend. How many pages does "
                "she read in 2 weeks?",
                "Mia's reading habits are as follows. School day: 15 pages. Day of the weekend: 30 pages. Over a "
                "period of 2 weeks, what is the total number of pages that she reads?",
            ),
        ],
    ),
    "paraphrase": Instruction(
        task="You paraphrase mathematical problems: say the same in other words and with other sentence structures.",
        examples=[
            (
                "A baker sells 18 loaves in the morning and twice as many in the afternoon. How many loaves does he "
                "sell that day?",
                "In the morning, 18 loaves leave a baker's shop; in the afternoon, twice that number do. What is the "
                "number of loaves sold over the whole day?",
            ),
            (
                "Find the smallest positive integer $n$ such that $n^2 + n$ is divisible by $30$.",
                "Which is the least positive integer $n$ for which $30$ divides $n^2 + n$?",
            ),
        ],
    ),
    "renaming": Instruction(
        task=(
            "You rename what occurs in mathematical problems: give variables other letters and people other names, "
            "consistently, and leave everything else as it is. Letters that the answer must be written in, constants "
            "such as $\\pi$, $e$ and $i$, units and the labels of figures keep their names. Where nothing can be "
            "renamed, reword the question slightly."
        ),
        examples=[
            (
                "Let $x$ and $y$ be real numbers with $x + 2y = 7$ and $xy = 3$. Find $x^2 + 4y^2$.",
                "Let $p$ and $q$ be real numbers with $p + 2q = 7$ and $pq = 3$. Find $p^2 + 4q^2$.",
            ),
            (
                "Paul has 9 marbles and gives 4 of them to Nina. How many marbles does he keep?",
                "Omar has 9 marbles and gives 4 of them to Vera. How many marbles does he keep?",
            ),
        ],
        renames=True,
    ),
    "format": Instruction(
        task=(
            "You change the format of mathematical problems: turn prose into a list of givens and a question, a "
            "question into a command, a command into a question, a list into prose. The facts stay as they are."
        ),
        examples=[
            (
                "A rectangle has a perimeter of 34 cm. Its length is 5 cm more than its width. What is its area?",
                "Given:\n- a rectangle with a perimeter of 34 cm\n- its length is 5 cm more than its width\n"
                "Asked: the area of the rectangle.",
            ),
            (
                "Evaluate $\\log_2 40 - \\log_2 5$.",
                "What is the value of the expression $\\log_2 40 - \\log_2 5$?",
            ),
        ],
    ),
}
"""name → instruction."""


def instruction(name: str) -> Instruction:
    """The instruction of this name.

    Raises:
        ValueError: there is none.
    """
    if name not in INSTRUCTIONS:
        raise ValueError(f"Expected an instruction among {', '.join(INSTRUCTIONS)}, but got {name!r}.")
    return INSTRUCTIONS[name]


def schema(count: int) -> dict[str, Any]:
    """JSON schema of a reply with `count` rephrasings.

    >>> schema(3)["properties"]
    {'rephrasings': {'type': 'array', 'items': {'type': 'string'}, 'minItems': 3, 'maxItems': 3}}
    """
    texts = {"type": "array", "items": {"type": "string"}, "minItems": count, "maxItems": count}
    return {
        "type": "object",
        "properties": {"rephrasings": texts},
        "required": ["rephrasings"],
        "additionalProperties": False,
    }
