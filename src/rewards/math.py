"""Mathematical equality of final answers, in worker processes with bounded time and memory."""

import re
from collections.abc import Callable, Sequence
from dataclasses import astuple
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from ..types import Score
from .canonical import Reference, is_container, references_of
from .comparison import DECIMAL_TOLERANCE, Conventions, Plan, any_of, compare_forms
from .extraction import extract_answers
from .forms import Based, Conditioned, Equation, Form, Group, Quantity
from .reading import read_answer
from .workers import BackgroundVerifier, Outcome, WorkerPool

_COMPARE = Path(__file__).with_name("equivalence.py")
_REMEMBERED = 1 << 16
"""Number of outcomes to keep: answers repeat under other prompts, and in later batches and epochs."""
_SENTENCE = re.compile(r"\banswers?\s*(?:is\b|are\b|:)", re.IGNORECASE)
_SPACED_DIGITS = re.compile(r"(?<![0-9.])[0-9]{1,3}(?:,?(?:\\[,;: ]|[\s~])+[0-9]{3})+(?![0-9])")


class MathReward(BackgroundVerifier):
    r"""Verifier of mathematical equality between the final answer (`extract_answers`) and a reference.

    Answer and reference are converted to a canonical form (`reading.read_answer`): a number, a list, an
    interval, a quantity with its unit, a number in a base, and so on. Most verdicts need only these forms.
    Comparisons that need algebra are made by math-verify in a pool of processes (`equivalence.compare`), each
    distinct comparison only once. A verdict depends only on the answer and the reference, never on earlier
    scores. docs/verdicts.md lists the forms and conventions.

    If the reference has several values, neighboring boxes count together; otherwise only the last box counts.
    `Score.answer` is the same for equal answers, so that they vote together: `0.5` for `\frac12`,
    `2.82842712475` for `2\sqrt2`. A comparison that exceeds a limit scores 0, and `Score.failure` says why:
    `timeout`, `memory`, `crash`, `length` (not compared), or the name of the exception that comparing raised.

    Workers start with the first comparison, each in 1 to 2 s. Only the settings are pickled.

    Args:
        workers: Number of processes that compare.
        cpu_seconds: Largest CPU time of a comparison. The answers of MATH take 0.1 s at most.
        memory_bytes: Largest memory of one worker.
        max_answer_length: Length of the longest answer that is compared, in characters. The longest
            references of MATH, Minerva and OlympiadBench have 159, 87 and 224.
        percent: Value that `50%` equals in addition to itself: `number` (50), `fraction` (0.5) or `either`.
        bare_base: Whether digits without a base equal the same digits in a base: `4210` and `4210_5`.
        bare_unit: Whether a number without a unit equals the same number with a unit: `5` and `5 cm`.
        ordered_as_list: Whether `(1,2)` equals `1, 2`, in this order.
        decimal_tolerance: Largest relative difference between a decimal and the number that it rounds. The
            two must also agree to six decimal places. 0 requires that they are equal.

    >>> with MathReward(workers=1) as reward:
    ...     reward.score_batch([r"\boxed{\sin 2x}", r"so $\boxed{\frac{1}{2}}$"], [(r"2\sin x\cos x", "2"), "0.2"])
    [Score(correct=True, answer='\\sin2x', failure=None),
     Score(correct=False, answer='0.5', failure=None)]
    """

    def __init__(
        self,
        workers: int = 2,
        cpu_seconds: float = 1.0,
        memory_bytes: int = 1 << 30,
        max_answer_length: int = 1000,
        percent: Literal["number", "fraction", "either"] = "number",
        bare_base: bool = True,
        bare_unit: bool = True,
        ordered_as_list: bool = True,
        decimal_tolerance: float = DECIMAL_TOLERANCE,
    ) -> None:
        self.max_answer_length = max_answer_length
        self.conventions = Conventions(percent, bare_base, bare_unit, ordered_as_list, decimal_tolerance)
        self._limits = workers, cpu_seconds, memory_bytes
        self._pool = WorkerPool(_COMPARE, *self._limits)
        self._known: dict[Plan, Outcome] = {}

    def score_async(
        self, responses: Sequence[str], references: Sequence[Reference]
    ) -> Callable[[], list[Score]]:
        """Start comparing, and return a function that waits for the scores."""
        found: list[tuple[Score, Plan]] = []
        known: dict[Plan, Outcome] = {}
        waiting: dict[Plan, None] = {}
        for response, reference in zip(responses, references, strict=True):
            score, plan = self._planned(response, references_of(reference))
            found.append((score, plan))
            if plan in self._known:
                known[plan] = self._known[plan]
            elif not isinstance(plan, bool):
                waiting[plan] = None
        wait = self._pool.submit(list(waiting))

        def scores() -> list[Score]:
            outcomes = dict(zip(waiting, wait(), strict=True))
            if len(self._known) > _REMEMBERED:
                self._known.clear()
            self._known |= {plan: outcome for plan, outcome in outcomes.items() if outcome.failure != "crash"}
            outcomes |= known
            return [_verdict(score, plan, outcomes) for score, plan in found]

        return scores

    def _planned(self, response: str, references: tuple[str, ...]) -> tuple[Score, Plan]:
        """Return the score of a wrong answer, and the plan that decides whether the answer is correct."""
        written = extract_answers(response)
        if not written:
            return Score(False, None), False
        forms = _forms(references)
        answer = ", ".join(written) if len(written) > 1 and any(map(_has_several, forms)) else written[-1]
        if len(answer) > self.max_answer_length:
            return Score(False, None, "length"), False
        form = read_answer(answer)
        return Score(False, str(form)), any_of(
            compare_forms(right, form, self.conventions) for right in forms
        )

    def check_reference(self, reference: Reference) -> None:
        """Check that a response can match each reference.

        Raises:
            ValueError: if a reference is empty, longer than `max_answer_length`, a worked solution, a
                sentence that states the answer, or a Python or JSON container.
        """
        for text in references_of(reference):
            fault = self._fault(text)
            if fault is not None:
                shown = text if len(text) <= 80 else f"{text[:60]} … {text[-15:]}"
                raise ValueError(
                    f"Expected a final answer for MathReward, but got {fault.format(repr(shown))}"
                )

    def _fault(self, text: str) -> str | None:
        """Return what is wrong with a reference, with a place for its text; None if nothing is wrong."""
        if not text.strip():
            return "{}. Give the answer, or drop the row."
        if "####" in text or r"\boxed" in text or "\n\n" in text:
            return (
                "the worked solution {}. If the answers are worked solutions, set the source's worked=true."
            )
        if len(text) > self.max_answer_length:
            return (
                f"{len(text)} characters, over the {self.max_answer_length} that are compared: {{}}. Raise "
                "reward.max_answer_length, or, for worked solutions, set the source's worked=true."
            )
        if is_container(text):
            return "the container {}. Write a string, or a list of strings for several correct answers."
        if _SENTENCE.search(text):
            return "the sentence {}. Keep the answer alone, such as 4."
        return None

    def reference_notes(self, reference: Reference) -> tuple[str, ...]:
        r"""Return the ways in which a reference is ambiguous.

        `base`: the reference is in a base, which an answer may leave out. `letters`: a letter after a number
        is a variable, although it may be meant as a unit (`6m`). `spaced digits`: groups of three digits may
        be one number or several (`81, 256`). `several values`: the reference is a list, a set or the like, so
        that neighboring boxes count together.

        >>> MathReward().reference_notes(("4210_5", "6m")), MathReward().reference_notes("81, 256")
        (('base', 'letters'), ('spaced digits', 'several values'))
        """
        texts = references_of(reference)
        forms = _forms(texts)
        found = {
            "base": any(isinstance(form, Based) for form in forms),
            "letters": any(isinstance(form, Quantity) and not form.unit.certain for form in forms),
            "spaced digits": any(_SPACED_DIGITS.search(text) for text in texts),
            "several values": any(map(_has_several, forms)),
        }
        return tuple(note for note, is_found in found.items() if is_found)

    def close(self) -> None:
        """End the workers and cancel comparisons under way. The next comparison starts new workers."""
        self._pool.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return MathReward, (*self._limits, self.max_answer_length, *astuple(self.conventions))


def _verdict(score: Score, plan: Plan, outcomes: dict[Plan, Outcome]) -> Score:
    if isinstance(plan, bool):
        return score._replace(correct=plan)
    return score._replace(correct=bool(outcomes[plan].value), failure=outcomes[plan].failure)


def _has_several(form: Form) -> bool:
    if isinstance(form, Conditioned):
        return _has_several(form.value)
    if isinstance(form, Equation):
        return form.value is not None and _has_several(form.value)
    return isinstance(form, Group) and len(form.items) > 1 and form.kind in ("list", "set", "tuple")


@lru_cache(maxsize=4096)
def _forms(references: tuple[str, ...]) -> tuple[Form, ...]:
    return tuple(map(read_answer, references))
