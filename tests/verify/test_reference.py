"""The formulas against the update, and the conventions that they name."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tagrpo.verify.batch import small_batch
from tagrpo.verify.methods import composed
from tagrpo.verify.models import models_for
from tagrpo.verify.ours import run_ours
from tagrpo.verify.outcome import largest
from tagrpo.verify.reference import Formula, Reference, advantage_changes, explain, loss_changes

METHODS = ["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "gmpo", "clip_cov", "kl_cov"]


@pytest.fixture(scope="module")
def reference():
    batch, models = models_for(small_batch(), None, 1.0)
    return Reference(batch, models)


def rows_of(values, lengths):
    return [value.expand(length) for value, length in zip(values, lengths, strict=True)]


@pytest.mark.parametrize("conventions", ["none", "trl", "verl"])
@pytest.mark.parametrize("method", METHODS)
def test_the_update_computes_the_formula(method, conventions, reference):
    cfg = composed(method, conventions)
    formula = Formula.of(cfg)
    outcome = run_ours(cfg, reference.batch, reference.models)
    advantages = rows_of(reference.advantages(formula), reference.batch.lengths)
    weights = reference.token_weights(formula, advantages)
    assert sum(float(row.abs().sum()) for row in weights) > 0
    assert largest(outcome.advantages, advantages) < 1e-6
    assert largest(outcome.token_weights, weights) < 2e-6 * float(torch.cat(weights).abs().max())
    found = explain(reference, formula, advantages=outcome.advantages, token_weights=outcome.token_weights)
    assert found == []


@pytest.mark.parametrize("tokens", [20, 64, 10_000])
def test_our_outcome_does_not_depend_on_micro_batches(tokens, reference):
    cfg = composed("grpo", "none")
    whole = run_ours(cfg, reference.batch, reference.models, micro_batch_tokens=10**6)
    parts = run_ours(cfg, reference.batch, reference.models, micro_batch_tokens=tokens)
    assert parts.loss == pytest.approx(whole.loss, abs=1e-7)
    assert largest(parts.token_weights, whole.token_weights) < 1e-6


def test_each_change_of_advantages_is_told_from_the_others(reference):
    rows = list(reference.batch.rows)
    rows[2] = rows[2].model_copy(update={"reward": None})
    reference = Reference(replace(reference.batch, rows=tuple(rows)), reference.models)
    formula = Formula()
    lengths = reference.batch.lengths
    plain = reference.advantages(formula)
    named = 0
    for change in advantage_changes(formula):
        values = reference.advantages(change.apply(formula))
        if torch.allclose(values, plain, rtol=0, atol=1e-9):
            continue  # acts on pools that the batch does not have
        if change.fields.get("epsilon", 1.0) < 1e-6:
            continue  # less than what float32 tells apart
        (finding,) = explain(reference, formula, advantages=rows_of(values, lengths))
        assert finding.causes == (change.name,)
        assert finding.expected == pytest.approx(float(plain[finding.row]))
        assert finding.found == pytest.approx(float(values[finding.row]))
        named += 1
    assert named >= 9


@pytest.mark.parametrize("method", ["grpo", "cispo", "kl_cov"])
def test_each_change_of_the_loss_is_told_from_the_others(method, reference):
    formula = Formula.of(composed(method, "none"))
    advantages = rows_of(reference.advantages(formula), reference.batch.lengths)
    plain = torch.cat(reference.token_weights(formula, advantages))
    sizes = [4, 6]
    named = 0
    for change in loss_changes(formula, sizes):
        weights = reference.token_weights(change.apply(formula), advantages)
        if torch.allclose(torch.cat(weights), plain, rtol=0, atol=1e-4 * float(plain.abs().max())):
            continue
        (finding,) = explain(reference, formula, token_weights=weights, micro_batch_rows=sizes)
        same = [
            other.name
            for other in loss_changes(formula, sizes)
            if torch.allclose(
                torch.cat(reference.token_weights(other.apply(formula), advantages)),
                torch.cat(weights),
                rtol=0,
                atol=1e-9,
            )
        ]
        assert finding.causes[0] in same
        named += 1
    assert named >= 5


def test_two_conventions_at_once_are_both_named(reference):
    formula = Formula()
    both = replace(formula, unbiased=False, epsilon=1e-4)
    values = rows_of(reference.advantages(both), reference.batch.lengths)
    (finding,) = explain(reference, formula, advantages=values)
    assert "Bessel" in " ".join(finding.causes)
    assert "1e-4" in " ".join(finding.causes) or "0.0001" in " ".join(finding.causes)


def test_what_no_convention_explains_says_so(reference):
    values = rows_of(reference.advantages(Formula()), reference.batch.lengths)
    values[5] = values[5] + 0.3
    (finding,) = explain(reference, Formula(), advantages=values)
    assert (finding.row, finding.token, finding.causes) == (5, 0, ())
    assert "no known convention" in str(finding)


def test_wrong_shapes_and_numbers_are_refused_by_response(reference):
    values = rows_of(reference.advantages(Formula()), reference.batch.lengths)
    for wrong, said in (
        (values[:-1], "24 responses"),
        ([*values[:-1], torch.zeros(99)], "response 23"),
        ([torch.full_like(values[0], torch.nan), *values[1:]], "response 0"),
    ):
        with pytest.raises(ValueError, match=said):
            explain(reference, Formula(), advantages=wrong)


def test_a_method_without_a_formula_has_none():
    assert Formula.of(composed("pass_at_k", "none")) is None
