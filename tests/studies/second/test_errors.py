"""False verdicts are counted once each, under the kind that they are of."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from studies.second import errors
from studies.second.errors import ANY, KINDS, errors_section, kept_errors, simulated_errors
from studies.second.verdicts import Hypothesis, error_rates, findings_of

RAISES = Hypothesis(smallest=0.02)


def claim(shape, outlier=0.0, seed=0):
    values = np.random.default_rng(seed).normal(0, 0.001, shape)
    values[0, 0] += outlier
    return RAISES, {"a − b": {"one/easy": pd.DataFrame(values), "two/easy": pd.DataFrame(values[::-1].copy())}}


def test_all_together_they_are_those_of_the_plan():
    claims = [claim((6, 1), outlier=0.05), claim((6, 30), seed=1)]
    found = simulated_errors(claims, rounds=60)
    assert {name: rates[ANY] for name, rates in found["rates"].items()} == error_rates(claims, [6, 6], rounds=60)
    assert max(rates[ANY] for rates in found["rates"].values()) > 0.1, (
        "the outlier is missing from a third of the draws"
    )


def test_a_false_verdict_is_told_under_its_kind(monkeypatch):
    claims = [claim((6, 1)), claim((6, 30), seed=1)]

    def only(position, setting):
        """Findings of which one alone reproduces, where there is no effect."""

        def findings(drawn):
            found = findings_of(drawn)
            for at, of_claim in enumerate(found):
                for finding in of_claim:
                    p = 0.0 if (at, finding.setting) == (position, setting) else 1.0
                    object.__setattr__(finding, "p_reproduces", p)
                    object.__setattr__(finding, "p_refuted", 1.0)
            return found

        return findings

    for position, setting, kind in ((0, "one/easy", KINDS[2]), (1, "two/easy", KINDS[1]), (1, "all", KINDS[0])):
        monkeypatch.setattr(errors, "findings_of", only(position, setting))
        rates = simulated_errors(claims, rounds=3)["rates"]
        assert rates["no effect"] == {name: float(name in (kind, ANY)) for name in (ANY, *KINDS)}
        assert set(rates["the smallest effect"].values()) == {0.0}


def test_they_are_simulated_once_for_the_same_digests(tmp_path):
    digest, kept = tmp_path / "a.jsonl.gz", tmp_path / "errors.json"
    digest.write_bytes(b"one")
    first = kept_errors([claim((6, 30))], [digest], kept, rounds=2)
    assert kept_errors([claim((6, 1), outlier=0.5)], [digest], kept, rounds=2) == first
    digest.write_bytes(b"two")
    second = kept_errors([claim((6, 30))], [digest], kept, rounds=2)
    assert second["digests"] != first["digests"]
    assert second["rates"] == first["rates"]


@pytest.mark.parametrize("rate", [0.05, 0.06])
def test_the_page_says_what_is_not_kept(rate):
    of = {KINDS[0]: 0.01, KINDS[1]: 0.02, KINDS[2]: rate, ANY: rate}
    text = "\n".join(errors_section({"rounds": 400, "rates": {"no effect": of, "the smallest effect": dict(of)}}))
    assert "drawn 400 times" in text
    assert f"| {KINDS[2]} | {100 * rate:.1f} % | {100 * rate:.1f} % |" in text
    assert (f"not kept by verdicts {KINDS[2]}.**" in text) is (rate > 0.05)
    assert ("Without them at most 3.0 % of the studies" in text) is (rate > 0.05)
