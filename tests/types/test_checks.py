"""Checks of what own parts return."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from tagrpo.types.checks import EndOfRun, check_column, float_dtype, found, name_of, own_code


class Mine:
    """A part."""


WRONG = [None, 1.0, [1.0, 2.0], (1.0, 2.0), np.ones(2), "text", torch.ones(2) + 0j, torch.ones(2).to_sparse()]
SHAPES = [
    torch.ones(3),
    torch.ones(1),
    torch.ones(()),
    torch.ones(2, 1),
    torch.ones(0),
    torch.ones(2, device="meta"),
]


@pytest.mark.parametrize("value", WRONG, ids=found)
def test_what_is_no_tensor_of_numbers_is_refused_with_class_setting_expected_and_found(value):
    expected = rf"Mine \(advantage\).*float tensor of shape \[2\], but got {re.escape(found(value))}"
    with pytest.raises(TypeError, match=expected):
        check_column(value, 2, Mine(), "advantage")


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_a_nested_tensor_is_refused():
    with pytest.raises(TypeError, match=r"Mine \(advantage\).*nested float32"):
        check_column(torch.nested.nested_tensor([torch.ones(1)] * 2), 2, Mine(), "advantage")


@pytest.mark.parametrize("value", SHAPES, ids=found)
def test_another_shape_or_device_is_refused(value):
    with pytest.raises(ValueError, match=rf"Mine \(loss\).*sums as.*{re.escape(found(value))}"):
        check_column(value, 2, Mine(), "loss", "sums")


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf"), 3.5e38, -1e300])
def test_what_float32_can_not_hold_is_refused(broken):
    with pytest.raises(FloatingPointError, match="1 of 2 are not"):
        check_column(torch.tensor([1.0, broken], dtype=torch.float64), 2, Mine(), "credit")


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float16, torch.long, torch.bool, torch.uint8]
)
def test_numbers_of_any_type_are_returned_as_float32_without_gradient(dtype):
    values = torch.tensor([0, 1]).to(dtype)
    if dtype.is_floating_point:
        values.requires_grad_()
    column = check_column(values, 2, Mine(), "advantage")
    assert column.tolist() == [0.0, 1.0]
    assert column.dtype == torch.float32
    assert not column.requires_grad


@pytest.mark.parametrize("code", [0, None, 3, "text"])
def test_sys_exit_of_a_part_is_an_error(code):
    with (
        pytest.raises(
            RuntimeError,
            match=rf"Mine \(rollout\.verifier\) .*sys\.exit\({code!r}\)",
        ),
        own_code(Mine(), "rollout.verifier"),
    ):
        raise SystemExit(code)


def test_other_errors_of_a_part_stay_what_they_are():
    for error in (ZeroDivisionError, KeyboardInterrupt):
        with pytest.raises(error), own_code(Mine(), "loss"):
            raise error


def test_an_error_shows_long_and_steering_values_in_short_and_plainly():
    assert len(found("x" * 10_000)) < 100
    assert "\x1b" not in found("\x1b[2J")
    assert found(list(range(1000))).startswith("[0, 1, 2")
    assert name_of(found) == "found"


def test_the_end_of_a_run_that_was_asked_to_stop_passes_through_a_part():
    with pytest.raises(EndOfRun), own_code(Mine(), "rollout.reformulator"):
        raise EndOfRun(0)


@pytest.mark.parametrize("value", [10**5000, [10**5000]], ids=["number", "list"])
def test_a_value_that_python_does_not_spell_is_shown_by_its_type(value):
    assert found(value) == f"… ({type(value).__name__})"


def test_only_what_a_terminal_would_obey_is_escaped():
    class Loud:
        def __repr__(self):
            return "é\x1b[2J"

    assert found(Loud()) == r"é\x1b[2J (Loud)"


def test_stop_iteration_of_a_part_is_an_error_of_its_name():
    with pytest.raises(RuntimeError, match=r"list \(advantage\).*StopIteration"), own_code([], "advantage"):
        next(iter([]))


@pytest.mark.parametrize(
    "name", ["", "nowhere/there", "int64", "bool", "nn", "Tensor", "complex64", "__name__"]
)
def test_other_names_than_those_of_floating_types_are_refused(name):
    with pytest.raises(ValueError, match=r"Correct rollout\.engine\.dtype"):
        float_dtype(name, "rollout.engine.dtype")
    assert float_dtype("float16", "rollout.engine.dtype") is torch.float16
