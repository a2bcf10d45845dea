"""TRL's trainers on the small batch against the formulas under TRL's conventions."""

from __future__ import annotations

import sys

import pytest
import torch

pytestmark = pytest.mark.runs
pytest.importorskip("trl", reason="needs TRL, the extra `bench`")

from tagrpo.verify.adapters import ask, write_exchange  # noqa: E402
from tagrpo.verify.batch import small_batch  # noqa: E402
from tagrpo.verify.compare import compare  # noqa: E402
from tagrpo.verify.methods import composed, told  # noqa: E402
from tagrpo.verify.models import models_for  # noqa: E402
from tagrpo.verify.outcome import largest  # noqa: E402
from tagrpo.verify.reference import Formula, Reference  # noqa: E402

METHODS = ["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "gmpo"]
SETTINGS = {"dtype": "float64", "temperature": 1.0, "max_response_tokens": 40}


@pytest.fixture(scope="module")
def small():
    return models_for(small_batch(), None, 1.0)


@pytest.fixture(scope="module", params=[24, 8], ids=lambda rows: f"micro-batches of {rows}")
def answer(request, small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trl")
    methods = {name: told(composed(name, "none")) for name in [*METHODS, "clip_cov"]}
    write_exchange(folder / "in", *small, {**SETTINGS, "micro_batch_rows": request.param, "methods": methods})
    return ask("trl", sys.executable, folder / "in", folder / "out")


@pytest.mark.parametrize("method", METHODS)
def test_trl_computes_the_formula_and_so_do_we(method, answer, small):
    found = compare("trl", method, answer, *small, conventions="trl")
    assert found.conventional.advantages <= 1e-6
    assert found.conventional.token_weights <= 2e-6
    assert found.conventional.gradient <= 2e-6
    formula = Formula.of(composed(method, "trl"))
    reference = Reference(*small)
    lengths = small[0].lengths
    advantages = [x.expand(n) for x, n in zip(reference.advantages(formula), lengths, strict=True)]
    weights = reference.token_weights(formula, advantages)
    theirs = answer.outcomes[method]
    assert largest(theirs.advantages, advantages) < 1e-6
    assert largest(theirs.token_weights, weights) < 2e-6 * float(torch.cat(weights).abs().max())


def test_what_trl_lacks_is_said(answer):
    assert "clip_cov" in answer.reasons["clip_cov"]
    assert answer.version


def test_groups_of_different_sizes_are_refused_with_the_reason(small, tmp_path):
    batch, models = small
    batch = type(batch)(batch.rows[:-1], batch.name)
    methods = {"grpo": told(composed("grpo", "none"))}
    write_exchange(tmp_path / "in", batch, models, {**SETTINGS, "micro_batch_rows": 23, "methods": methods})
    answer = ask("trl", sys.executable, tmp_path / "in", tmp_path / "out")
    assert "same number of responses" in answer.reasons["grpo"]
