"""Each trainer's own code against our update with the trainer's conventions, method by method."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.runs

from tagrpo.verify.adapters import ask, write_exchange  # noqa: E402
from tagrpo.verify.batch import small_batch  # noqa: E402
from tagrpo.verify.compare import compare  # noqa: E402
from tagrpo.verify.methods import composed, told  # noqa: E402
from tagrpo.verify.models import models_for  # noqa: E402
from tagrpo.verify.session import python_of  # noqa: E402

EQUAL = {
    "trl": ["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "gmpo"],
    "verl": ["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "gmpo", "clip_cov", "kl_cov"],
    "skyrl": ["dr_grpo", "dapo", "gspo", "cispo", "rloo"],
}
"""Trainer → methods that are equal with its conventions."""


@pytest.fixture(scope="module")
def small():
    return models_for(small_batch(), None, 1.0)


@pytest.fixture(scope="module", params=EQUAL)
def answered(request, small, tmp_path_factory):
    """Name of a trainer and its answer."""
    python = python_of(request.param, None)
    if python is None:
        pytest.skip(f"needs {request.param}: its Python in $TAGRPO_TRAINERS/{request.param}/bin/python")
    folder = tmp_path_factory.mktemp(request.param)
    methods = {name: told(composed(name, "none")) for name in [*EQUAL["verl"], "pass_at_k"]}
    settings = {"dtype": "float64", "temperature": 1.0, "max_response_tokens": 40, "micro_batch_rows": 24}
    write_exchange(folder / "in", *small, {**settings, "methods": methods})
    return request.param, ask(request.param, python, folder / "in", folder / "out")


def test_every_method_of_a_trainer_is_equal_with_its_conventions(answered, small):
    trainer, answer = answered
    for method in EQUAL[trainer]:
        found = compare(trainer, method, answer, *small, conventions=trainer)
        assert found.conventional.advantages <= 1e-6, method
        assert found.conventional.token_weights <= 2e-6, method
        assert found.conventional.gradient <= 2e-6, method
        assert found.verdict.startswith("equal"), method


def test_a_method_of_a_like_name_is_another(answered, small):
    trainer, answer = answered
    found = compare(trainer, "pass_at_k", answer, *small, conventions=trainer)
    if trainer == "verl":
        assert "2503.19595" in found.verdict
        assert not found.conventional.equal
    else:
        assert found.reason
