"""The judge: a model that says whether a rephrasing is the same problem as its original."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .calls import ApiCall
from .candidates import Pair, Reviewed, Verdict, accepted
from .client import Client

_SYSTEM = """\
You compare two statements of a mathematical problem. They are equivalent when a solver who has only one of them must
arrive at the same final answer, written in the same form, as one who has only the other.

Check each of these: the same numbers, units and formulas; the same conditions, none added, none lost; the same unknown
is asked for, in the same form; no roles are swapped; no part of the solution is given away. Different wording, order,
format and names of people or variables do not matter. Do not solve the problem.

Give your reason in one sentence, then a last line: EQUIVALENT: yes, or EQUIVALENT: no."""


@dataclass(frozen=True, kw_only=True)
class Judge:
    """A model that compares each rephrasing with its original; it does not see the reference answer."""

    model: str
    """Name of the judge on its server."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters, handed to the server."""

    def call(self, pair: Pair) -> ApiCall:
        """The question to the judge about one pair."""
        return ApiCall(
            purpose="judge",
            model=self.model,
            system=_SYSTEM,
            user=f"First statement:\n{pair.question}\n\nSecond statement:\n{pair.rephrasing}",
            parameters=self.parameters,
            expected_tokens=60,
        )

    async def review(self, reviewed: Sequence[Reviewed], client: Client) -> None:
        """Add a verdict to every candidate that no check of the text has failed; earlier ones are replaced.

        Where the judge does not reply, or does not say, the verdict is undecided.
        """
        places = []
        for item in reviewed:
            for candidate in item.candidates:
                candidate.verdicts = [verdict for verdict in candidate.verdicts if verdict.check != "judge"]
                if accepted(candidate.verdicts):
                    places.append((candidate, self.call(item.pair(candidate))))
        replies = await client.complete([call for _, call in places])
        for (candidate, _), reply in zip(places, replies, strict=True):
            equivalent, reason = read_judgement(reply.text) if reply.text else (None, f"no reply: {reply.fault}")
            candidate.verdicts.append(Verdict("judge", equivalent, reason or "no reason given"))


def read_judgement(text: str) -> tuple[bool | None, str]:
    """Whether a judge calls two problems equivalent, and why; None where the text does not say."""
    found = list(re.finditer(r"\bequivalent\W{0,4}(yes|no|true|false)\b", text, re.IGNORECASE))
    if not found:
        return None, text.strip()[:300]
    last = found[-1]
    return last[1].lower() in ("yes", "true"), text[: last.start()].strip(" \n*")[:300]
