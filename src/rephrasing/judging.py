"""Whether models take a rephrasing for the same problem: the opinion of a judge, and the answers of a solver.

The requests are built and their answers read by plain functions; who sends them is the pipeline's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..rewards.extraction import extract_answer, normalize_answer
from ..types import Score
from .replies import read_judgement
from .requests import Request
from .verdicts import Pair, Verdict

JUDGE_SYSTEM = """\
You compare two statements of a mathematical problem. They are equivalent when a solver who has only one of them must
arrive at the same final answer, written in the same form, as one who has only the other.

Check each of these: the same numbers, units and formulas; the same conditions, none added, none lost; the same unknown
is asked for, in the same form; no roles are swapped; no part of the solution is given away. Different wording, order,
format and names of people or variables do not matter. Do not solve the problem."""

JUDGE_SCHEMA = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "equivalent": {"type": "boolean"}},
    "required": ["reason", "equivalent"],
    "additionalProperties": False,
}
JUDGE_PLAIN = "Give your reason in one sentence, then a last line: EQUIVALENT: yes, or EQUIVALENT: no."

SOLVER_SYSTEM = "Solve the problem. Reason step by step, and put the final answer into \\boxed{}."


def judge_request(question: str, pair: Pair, model: str, parameters: Mapping[str, Any]) -> Request:
    """Ask a judge about a pair; it does not see the reference answer.

    Args:
        question: Id of the question.
        pair: What is judged.
        model: Name of the judge.
        parameters: Of its sampling.
    """
    return Request(
        purpose="judge",
        question=question,
        model=model,
        system=JUDGE_SYSTEM,
        user=f"First statement:\n{pair.question}\n\nSecond statement:\n{pair.rephrasing}",
        parameters=parameters,
        schema=JUDGE_SCHEMA,
        plain_format=JUDGE_PLAIN,
        expected_tokens=60,
    )


def judge_verdict(reply: str) -> Verdict:
    """What a judge's reply says; undecided where it says nothing.

    >>> judge_verdict('{"reason": "The second asks for the area.", "equivalent": false}')
    Verdict(check='judge', passed=False, reason='The second asks for the area.', value=None)
    """
    equivalent, reason = read_judgement(reply)
    return Verdict("judge", equivalent, reason or "no reason given")


def solver_request(
    question: str, problem: str, model: str, samples: int, parameters: Mapping[str, Any], expected_tokens: int
) -> Request:
    """Ask a solver for several solutions of one statement.

    Args:
        question: Id of the question.
        problem: The statement.
        model: Name of the solver.
        samples: Solutions wanted.
        parameters: Of its sampling.
        expected_tokens: About how long a solution is, for the estimate.
    """
    return Request(
        purpose="solve",
        question=question,
        model=model,
        system=SOLVER_SYSTEM,
        user=problem,
        parameters=parameters,
        samples=samples,
        expected_tokens=expected_tokens,
    )


Verifier = Callable[[str, Sequence[str]], Score]
"""(response, reference answers) → score, as in `tagrpo.rewards`."""


class Majority(NamedTuple):
    """The most frequent final answer of several solutions."""

    answer: str | None
    """Normalised; None where no solution has an answer, or two answers lead with as many votes."""
    votes: int
    total: int
    """Solutions, those without an answer included."""


def majority(solutions: Sequence[str], reference: Sequence[str], verifier: Verifier) -> Majority:
    r"""The vote of the solutions; those that the verifier finds correct vote together, for the reference answer.

    >>> from tagrpo.rewards import FinalAnswerReward
    >>> majority(["#### 5", "#### 5.0", "#### 7", "no idea"], ("5",), FinalAnswerReward())
    Majority(answer='5', votes=2, total=4)
    """
    votes: Counter[str] = Counter()
    for solution in solutions:
        score = verifier(solution, reference)
        if score.correct:
            votes[normalize_answer(reference[0])] += 1
        elif (answer := score.answer or extract_answer(solution)) is not None:
            votes[normalize_answer(answer)] += 1
    leaders = votes.most_common(2)
    if not leaders or (len(leaders) == 2 and leaders[0][1] == leaders[1][1]):
        return Majority(None, leaders[0][1] if leaders else 0, len(solutions))
    return Majority(*leaders[0], len(solutions))


def solver_verdict(original: Majority, rephrased: Majority, reference: Sequence[str], least: float = 0.5) -> Verdict:
    """Whether the solver's majority answer to the rephrasing is the right one.

    | majority on the rephrasing | majority on the original | verdict |
    |---|---|---|
    | the reference answer | any | passed |
    | another answer | the same other answer | passed: wrong alike |
    | another answer | the reference answer | failed |
    | another answer, or none | another one, or none | undecided: too hard for the solver |

    Args:
        original: Vote on the original question.
        rephrased: Vote on the rephrasing.
        reference: Reference answers.
        least: A majority must have this share of the solutions, or it counts as none.

    >>> solver_verdict(Majority("5", 7, 8), Majority("7", 6, 8), ("5",)).reason
    'the solver answers 7 (6 of 8), but 5 (7 of 8) to the original'
    >>> solver_verdict(Majority("7", 5, 8), Majority("7", 6, 8), ("5",)).passed
    True
    """
    known = {normalize_answer(answer) for answer in reference}
    before, after = (vote.answer if vote.votes >= least * vote.total else None for vote in (original, rephrased))
    said = f"the solver answers {after} ({rephrased.votes} of {rephrased.total})"
    share = rephrased.votes / max(rephrased.total, 1)
    if after is not None and after in known:
        return Verdict("solver", True, f"{said}, the reference answer", share)
    if after is not None and after == before:
        return Verdict("solver", True, f"{said}, as to the original", share)
    if before is not None and before in known and after is not None:
        return Verdict(
            "solver", False, f"{said}, but {before} ({original.votes} of {original.total}) to the original", share
        )
    return Verdict("solver", None, "the solver has no clear answer to the original or to the rephrasing", share)
